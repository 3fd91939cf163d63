"""psql on a database: this host's own, which gets the terminal; or, where there is none, that of the database's machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote, urlsplit

import typer

from torpor.errors import HostNotReady

if TYPE_CHECKING:
    from torpor.sdk.sync_databases import Database

_IN_MACHINE = "/usr/lib/postgresql/17/bin/psql"


def run_psql(database: Database, args: Sequence[str]) -> NoReturn:
    """Run psql on a database with arguments; does not return.

    The password goes by the environment, where `ps` does not show it.

    Raises:
        HostNotReady: psql is not installed here, and a shell is wanted, which needs it.
    """
    program = shutil.which("psql")
    if program is None:
        raise typer.Exit(_in_machine(database, args))
    parts = urlsplit(database.url())
    environment = {
        **os.environ,
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port or 5432),
        "PGUSER": parts.username or "",
        "PGPASSWORD": unquote(parts.password or ""),
        "PGDATABASE": parts.path.lstrip("/"),
    }
    os.execve(program, [program, *args], environment)  # noqa: S606 - no shell is the point


def _in_machine(database: Database, args: Sequence[str]) -> int:
    """Run the machine's own psql, with what stdin has; return its exit code."""
    from torpor.sdk.sync_sandbox import Sandbox

    if sys.stdin.isatty() and not args:
        raise HostNotReady(
            "psql is not installed on this host, and a shell needs it",
            hint="run: sudo apt-get install postgresql-client; or give statements: -- -c 'SELECT 1'",
        )
    text = "" if sys.stdin.isatty() else sys.stdin.read()
    info = database.wake()
    done = Sandbox.get(str(info.sandbox_id)).exec(
        [_IN_MACHINE, *args], user="postgres", cwd="/", stdin=text
    )
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.exit_code
