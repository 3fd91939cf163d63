from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.memory.clock import FakeClock
from torpor.memory import Memory, Space

if TYPE_CHECKING:
    from torpor.memory.postgres import PostgresStore

_schemas = itertools.count()


def _server_programs() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return places[-1].parent if places else None


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """A PostgreSQL server of the tests' own, on a socket, gone afterwards."""
    pytest.importorskip("psycopg", reason="the extra torpor[postgres] is not installed")
    programs = _server_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server programs are not installed")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    as_user: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    data = str(folder / "data")

    def run(*argv: str) -> None:
        subprocess.run([*as_user, *argv], check=True, capture_output=True, cwd="/")

    run(str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8")
    options = f"-k {folder} -c listen_addresses='' -c fsync=off"
    control = str(programs / "pg_ctl")
    run(control, "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield f"host={folder} user=postgres dbname=postgres"
    finally:
        run(control, "-D", data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder)


@pytest.fixture
def postgres(postgres_dsn: str) -> Callable[[], PostgresStore]:
    """Make a store in a schema of its own."""
    from torpor.memory.postgres import PostgresStore

    return lambda: PostgresStore(postgres_dsn, schema=f"s{next(_schemas)}", busy_timeout_s=0.2)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def memory(path: Path, clock: FakeClock) -> Iterator[Memory]:
    with Memory.open(path, clock=clock) as opened:
        yield opened


@pytest.fixture
def mem(memory: Memory) -> Space:
    return memory.space(agent="hermes-1")
