"""Keeping SQLite databases quiet: a write transaction of our own in each, so that nobody else has one.

`BEGIN IMMEDIATE` keeps writers out and lets readers go on, in WAL mode and in rollback mode. What was committed
before is in the file and its WAL; both are on the disk at the snapshot's instant. Only this process opens the
databases, and it opens them by SQLite alone once it has looked at their headers: POSIX locks belong to a process,
and a plain close of a file drops them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from typing import Any
from urllib.parse import quote_from_bytes

from torpor_guest.find_sqlite import Found, find
from torpor_guest.keeping import KeeperFailed, Nothing

DATABASES_MOST = 256
_CHECKPOINT_S = 0.3
"""A reader may hold up a checkpoint for as long as it likes; the snapshot is as good with a WAL in it."""
_TRY_AGAIN_S = 0.002
"""Far shorter than SQLite's own steps: whoever writes all the time leaves short gaps."""
_NAMES_SHOWN = 8


class SqliteKeeper:
    """All databases below some folders."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._paths = [os.fsencode(path) for path in config.get("paths") or []]
        self._roots = [os.fsencode(path) for path in config.get("roots") or []]
        self._exclude = [str(pattern) for pattern in config.get("exclude") or []]
        self._open: list[tuple[Found, sqlite3.Connection]] = []
        self._notes: list[str] = []

    def prepare(self, deadline: float) -> str:
        """Find and open them, and write most of each WAL into its database."""
        found = find(self._paths, self._roots, self._exclude, deadline)
        if not found:
            raise Nothing
        if len(found) > DATABASES_MOST:
            raise KeeperFailed(
                f"there are {len(found)} databases; at most {DATABASES_MOST} can be held: name or exclude some"
            )
        for each in found:
            self._connect(each, deadline)
        if not self._open:
            raise Nothing
        return f"{_count(self._open)} found (SQLite {sqlite3.sqlite_version}): {self._names()}"

    def hold(self, deadline: float) -> str:
        """Empty each WAL, then begin a write transaction in each."""
        for found, connection in self._open:
            is_empty = self._empty_wal(found, connection, deadline)
            self._begin(found, connection, deadline)
            if not is_empty:
                self._write_wal(found)
        notes = "".join(f"; {note}" for note in self._notes[:_NAMES_SHOWN])
        return (
            f"{_count(self._open)} held (SQLite {sqlite3.sqlite_version}): {self._names()}{notes}"
        )

    def confirm(self) -> str:
        """Raise unless all transactions are still ours, in the files that have these names."""
        for found, connection in self._open:
            if not connection.in_transaction:
                raise KeeperFailed(f"{found.shown} is not held any more")
            try:
                now = os.lstat(found.path)
            except OSError:
                raise KeeperFailed(f"{found.shown} was removed while it was held") from None
            if (now.st_dev, now.st_ino) != found.number:
                raise KeeperFailed(f"{found.shown} was replaced while it was held")
        return ""

    def release(self) -> str:
        """Roll back and close."""
        count = _count(self._open)
        while self._open:
            _, connection = self._open.pop()
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        return f"{count} released"

    def _connect(self, found: Found, deadline: float) -> None:
        try:
            connection = _opened(found)
        except sqlite3.Error as exc:
            if os.path.lexists(found.path):
                raise KeeperFailed(f"{found.shown} cannot be opened: {exc}") from exc
            return  # removed meanwhile
        self._open.append((found, connection))
        self._checkpoint(found, connection, "PASSIVE")

    def _empty_wal(self, found: Found, connection: sqlite3.Connection, deadline: float) -> bool:
        """Have the WAL written into its database and emptied; return whether it could be."""
        give_up_at = min(deadline, time.monotonic() + _CHECKPOINT_S)
        while True:
            if self._checkpoint(found, connection, "TRUNCATE")[0] == 0:
                return True
            if time.monotonic() >= give_up_at:
                return False
            time.sleep(_TRY_AGAIN_S)

    def _write_wal(self, found: Found) -> None:
        """Have a WAL that could not be emptied written into its database, now that nobody writes."""
        with contextlib.closing(_opened(found)) as other:
            busy, frames, written = self._checkpoint(found, other, "PASSIVE")
        whole = busy == 0 and frames == written
        self._notes.append(
            f"{found.shown} holds all, and its WAL could not be emptied"
            if whole
            else f"a reader keeps a part of the WAL of {found.shown} from being written into it"
        )

    def _checkpoint(
        self, found: Found, connection: sqlite3.Connection, how: str
    ) -> tuple[int, int, int]:
        """Return whether others were in the way, the frames in the WAL, and those that the database has."""
        try:
            row = connection.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
            return int(row[0]), int(row[1]), int(row[2])
        except sqlite3.OperationalError:  # locked
            return 1, 0, 0
        except sqlite3.DatabaseError as exc:
            raise KeeperFailed(f"{found.shown}: {exc}") from exc

    def _begin(self, found: Found, connection: sqlite3.Connection, deadline: float) -> None:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as exc:
                is_locked = "locked" in str(exc) or "busy" in str(exc)
                if is_locked and time.monotonic() < deadline:
                    time.sleep(_TRY_AGAIN_S)
                    continue
                why = "is locked by another" if is_locked else f"cannot be held: {exc}"
                raise KeeperFailed(f"{found.shown} {why}") from exc
            except sqlite3.DatabaseError as exc:
                raise KeeperFailed(f"{found.shown} cannot be held: {exc}") from exc
            return

    def _names(self) -> str:
        shown = [found.shown for found, _ in self._open[:_NAMES_SHOWN]]
        more = len(self._open) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


def _opened(found: Found) -> sqlite3.Connection:
    """Return a connection that waits for nobody."""
    uri = f"file:{quote_from_bytes(found.path)}?mode=rw"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)


def _count(found: list[tuple[Found, sqlite3.Connection]]) -> str:
    return f"{len(found)} database{'' if len(found) == 1 else 's'}"
