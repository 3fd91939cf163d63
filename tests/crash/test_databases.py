"""kill -9 of the daemon while a database's snapshot is taken or dropped: it is there or not, and its label is free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.test_changes import Daemon, client, home
from torpor import Client, Database, Volume
from torpor.base.home import Home
from torpor.errors import TorporError
from torpor.sdk.loop import loop_thread

__all__ = ["client", "home"]

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

TAKING = ["database.snapshot.intent", "database.snapshot.taken"]
DROPPING = ["database.snapshot.dropping"]


def test_a_snapshot_is_there_or_its_label_is_free(
    home: Home, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fault = tmp_path / "fault"
    monkeypatch.setenv("TORPOR_TEST_FAULT_FILE", str(fault))
    daemon = Daemon(home)
    database = Database.create("shop", ram_mib=1024, client=client)

    def labels() -> tuple[list[str | None], list[str | None]]:
        """Those that the database knows, and those of its volume."""
        volume = Volume.get("db-shop", client=client)
        return [s.label for s in database.snapshots()], [s.label for s in volume.snapshots()]

    def dies_at(point: str, act: Callable[[], object]) -> Daemon:
        fault.write_text(point)
        with pytest.raises(TorporError):
            act()
        assert daemon.died(), f"{point} was never reached"
        loop_thread.close()
        return Daemon(home)

    for point in TAKING:
        daemon = dies_at(point, lambda: database.snapshot(label="mine"))
        assert labels() == ([None], [None]), "what was half taken is gone"
    database.snapshot(label="mine")
    Volume.get("db-shop", client=client).snapshot(label="by hand")
    assert labels() == (["mine", None], ["by hand", "mine", None])
    for point in DROPPING:
        daemon = dies_at(point, lambda: database.delete_snapshot("mine"))
        assert labels() == ([None], ["by hand", None]), "a user's own stays"
        database.snapshot(label="mine")
    database.delete()
    assert Volume.list(client=client) == []
    daemon.stop()
