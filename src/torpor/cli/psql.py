"""Handing the terminal over to psql; the password goes by its environment, where `ps` does not show it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from torpor.errors import HostNotReady


def run_psql(url: str, args: Sequence[str]) -> NoReturn:
    """Become psql, connected to `url`.

    Raises:
        HostNotReady: it is not installed.
    """
    program = shutil.which("psql")
    if program is None:
        raise HostNotReady(
            "psql is not installed on this host",
            hint="run: sudo apt-get install postgresql-client; or use any client with: torpor db url",
        )
    parts = urlsplit(url)
    environment = {
        **os.environ,
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port or 5432),
        "PGUSER": parts.username or "",
        "PGPASSWORD": unquote(parts.password or ""),
        "PGDATABASE": parts.path.lstrip("/"),
    }
    os.execve(program, [program, *args], environment)  # noqa: S606 - no shell is the point
