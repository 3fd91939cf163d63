"""Databases: how long a create and a clone take, and what PostgreSQL does in a second beside a plain one there."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from torpor.base.ids import new_id
from torpor.bench.figures import Figure, Goal, Series
from torpor.bench.rig import Rig, root
from torpor.errors import TorporError
from torpor.sdk.sync_databases import Database
from torpor.sdk.sync_sandbox import Sandbox

_BIN = "/usr/lib/postgresql/17/bin"
_PLAIN = "/srv/postgres/plain"
_TPS = re.compile(r"^tps = ([0-9.]+) ", re.MULTILINE)

# both servers are units of their own, so that the kernel shares the CPU out to both in the same way
_SET_UP = f"""
set -e
cp -a /usr/share/torpor/postgres/cluster {_PLAIN}
cat /run/torpor-postgres/machine.conf >>{_PLAIN}/postgresql.conf
install -d -o postgres /run/plain
cd /
systemd-run --quiet --collect --unit=torpor-bench-plain --service-type=notify --property=User=postgres \
    {_BIN}/postgres -D {_PLAIN} -p 5433 -k /run/plain -c listen_addresses=
for at in '-h /run/postgresql' '-h /run/plain -p 5433'; do
    runuser -u postgres -- {_BIN}/pgbench $at -i -q -s 2 postgres 2>/dev/null
    runuser -u postgres -- {_BIN}/psql $at -qc CHECKPOINT postgres
done
while ls /srv/postgres/data/pg_wal/archive_status/*.ready >/dev/null 2>&1; do sleep 0.2; done
"""


def create_clone_and_pgbench(rig: Rig) -> Iterator[Figure]:
    """Create and clone databases, and run pgbench in one of them against a plain server beside it."""
    made: list[Database] = []
    created: list[float] = []
    cloned: list[float] = []

    def name() -> str:
        return f"bench-{new_id('db')[3:11]}"

    try:
        # the first pays for the template and the seed
        made.append(Database.create(name(), client=rig.client))
        for _ in range(rig.times(5, 1)):
            begun = time.perf_counter()
            made.append(Database.create(name(), client=rig.client))
            created.append((time.perf_counter() - begun) * 1000)
            begun = time.perf_counter()
            made.append(made[0].clone(name()))
            cloned.append((time.perf_counter() - begun) * 1000)
            for database in (made.pop(), made.pop()):
                database.delete()
        ours, plain = _pgbench(rig, made[0])
    finally:
        for database in made:
            database.delete()
    yield Figure(
        name="database.create",
        what="create a database, to the answer of a query through its URL",
        unit="ms",
        ours=Series.of(created),
        goal=Goal("at most", 5000),
    )
    yield Figure(
        name="database.clone",
        what="clone a running database, to the answer of a query through its URL",
        unit="ms",
        ours=Series.of(cloned),
        goal=Goal("at most", 2000),
        note="and what was written since its last snapshot",
    )
    yield Figure(
        name="database.pgbench",
        what="transactions of pgbench in a database's machine",
        unit="1/s",
        ours=Series.of(ours),
        beside=Series.of(plain),
        beside_what="a plain PostgreSQL in the same machine, on the same volume, without an archive",
        goal=Goal("ratio at least", 0.95),
    )


def _pgbench(rig: Rig, database: Database) -> tuple[list[float], list[float]]:
    machine = Sandbox.get(str(database.refresh().sandbox_id), client=rig.client)
    root(machine, _SET_UP)
    seconds = rig.times(20, 3)
    ours: list[float] = []
    plain: list[float] = []
    for at in ("-h /run/postgresql", "-h /run/plain -p 5433"):
        _tps(machine, at, 2)  # the first of each finds nothing in its memory
    for _ in range(rig.times(5, 1)):  # in turns, so that both see the same of a busy host
        ours.append(_tps(machine, "-h /run/postgresql", seconds))
        plain.append(_tps(machine, "-h /run/plain -p 5433", seconds))
    return ours, plain


def _tps(machine: Sandbox, at: str, seconds: int) -> float:
    text = root(
        machine, f"runuser -u postgres -- {_BIN}/pgbench {at} -c 2 -T {seconds} postgres 2>&1"
    )
    found = _TPS.search(text)
    if found is None:
        raise TorporError(f"pgbench said nothing of transactions: {text[-500:]}")
    return float(found[1])
