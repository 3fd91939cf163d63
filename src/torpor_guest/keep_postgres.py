"""Having PostgreSQL write its dirty pages, by its own client."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from glob import glob
from typing import Any

from torpor_guest.keeping import KeeperFailed, left_s, plain

_SOCKETS = "/run/postgresql"
_PROGRAMS = ("/usr/bin/psql", "/usr/lib/postgresql/*/bin/psql", "/usr/local/bin/psql")
_CONFIRM_S = 10.0


class PostgresKeeper:
    """One server. Nothing is held: after a restore it recovers from its WAL, as after a power cut."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._address = str(config.get("address") or _SOCKETS)
        self._port = str(config.get("port") or 5432)
        self._user = str(config.get("user") or "postgres")
        self._started = ""

    def prepare(self, deadline: float) -> str:
        """Make a checkpoint, which shortens the recovery."""
        self._psql("CHECKPOINT", deadline)
        return "checkpoint made"

    def hold(self, deadline: float) -> str:
        """See that it answers; remember when it was started."""
        self._started = self._start_time(deadline)
        return "checkpoint made; not held: a restored server replays its WAL"

    def confirm(self) -> str:
        """Raise if it was restarted."""
        if self._start_time(time.monotonic() + _CONFIRM_S) != self._started:
            raise KeeperFailed("PostgreSQL was restarted meanwhile")
        return ""

    def release(self) -> str:
        """There is nothing to let go."""
        return ""

    def _start_time(self, deadline: float) -> str:
        return self._psql("SELECT pg_postmaster_start_time()", deadline)

    def _psql(self, sql: str, deadline: float) -> str:
        program = next((found for p in _PROGRAMS for found in sorted(glob(p))[::-1]), None)
        if program is None:
            raise KeeperFailed("there is no psql in the machine")
        try:
            done = subprocess.run(
                [
                    *(program, "-X", "-A", "-t", "-q", "-w", "-v", "ON_ERROR_STOP=1"),
                    *("-h", self._address, "-p", self._port, "-U", self._user),
                    *("-d", "postgres", "-c", sql),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=left_s(deadline),
                check=False,
                cwd="/",
                **self._identity(),
            )
        except subprocess.TimeoutExpired:
            raise KeeperFailed(f"PostgreSQL at {self._address}: {sql} took too long") from None
        if done.returncode != 0:
            why = plain(done.stderr.decode("utf-8", "replace").strip(), 300)
            raise KeeperFailed(f"PostgreSQL at {self._address} refuses {sql}: {why}")
        return str(done.stdout.decode("utf-8", "replace").strip())

    def _identity(self) -> dict[str, Any]:
        """Return whom psql runs as: the server's own user, whom it knows by its socket."""
        if os.geteuid() != 0:
            return {}
        try:
            entry = pwd.getpwnam(self._user)
        except KeyError:
            return {}
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
