"""DBOS as we use it: one SQLite file, JSON in it, quiet. Imported only by `durable`, when it is needed: it takes long."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from dbos import DBOS, Serializer
from sqlalchemy.exc import DatabaseError
from typing_extensions import override

from torpor.db.database import translate
from torpor.errors import InsufficientResources

log = logging.getLogger(__name__)

_ERROR = "torpor.error"
_POLL_S = 1.0
"""How often DBOS looks for messages by itself; ours are told at once (`Durable.send`)."""


class JsonSerializer(Serializer):
    """What steps return is plain JSON. An exception is kept as its text: whoever replays it learns no more."""

    @override
    def serialize(self, data: Any) -> str:
        return json.dumps(data, default=lambda value: {_ERROR: repr(value)})

    @override
    def deserialize(cls, serialized_data: str) -> Any:
        found = json.loads(serialized_data)
        if isinstance(found, dict) and _ERROR in found:
            return RuntimeError(found[_ERROR])
        return found

    @override
    def name(self) -> str:
        return "torpor-json"


def launch(path: Path, version: str) -> None:
    """Launch DBOS on the file at `path` (mode 0600). A file that is no database of DBOS is set aside. Blocks.

    Raises:
        InsufficientResources: the disk is full, or another program has locked the file.
    """
    try:
        _launch(path, version)
    except DatabaseError as exc:
        DBOS.destroy()
        error = translate(exc, str(path))
        if isinstance(error, InsufficientResources):
            raise error from exc
        aside = path.with_name(f"{path.name}.damaged")
        log.error("%s cannot be used (%s); it is set aside as %s", path, exc.orig, aside.name)  # noqa: TRY400
        path.replace(aside)
        for suffix in ("-journal", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        _launch(path, version)


def _launch(path: Path, version: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    DBOS(
        config={
            "name": "torpor",
            "system_database_url": f"sqlite:///{path}",
            "application_version": version,
            "executor_id": "torpord",
            "log_level": "WARNING",
            "enable_otlp": False,
            "serializer": JsonSerializer(),
            "notification_listener_polling_interval_sec": _POLL_S,
        }
    )
    quiet = logging.getLogger("dbos")
    quiet.handlers.clear()  # our own log takes what it says
    quiet.propagate = True
    DBOS.launch()
