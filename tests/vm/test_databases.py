"""Databases on real machines, with real clients: psycopg and a SQLAlchemy application."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandastack
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from tests.compat.serving import panda, token, url
from tests.vm.conftest import machines
from torpor import Database, Sandbox, Templates, Volume
from torpor.base.home import Home
from torpor.errors import Conflict, InvalidRequest, NotFound, OutsideArchive, WrongState
from torpor.model_databases import DatabaseState

__all__ = ["panda", "token", "url"]

D = DatabaseState


@pytest.fixture(scope="module")
def postgres(vm_home: Home) -> Iterator[str]:
    """The template of databases, built from nothing unless the home has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORPOR_HOME", str(vm_home.root))
        yield Templates.build("postgres").name


@pytest.fixture(scope="module")
def db(postgres: str, vm_home: Home) -> Iterator[Database]:
    """One database for the tests that leave no mark on each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORPOR_HOME", str(vm_home.root))
        steps: list[str] = []
        made = Database.create("shop", size="1g", progress=lambda s: steps.append(s.step))
        assert steps[-1] == "connection"
        yield made
        for found in Database.list():
            found.delete()
        assert not [v.name for v in Volume.list() if v.name.startswith("db-")]


def query(url: str, statement: str, *args: object) -> list[tuple[object, ...]]:
    """Run a statement, as often as a client tries that is cut off by a machine that goes down."""
    with psycopg.connect(url, connect_timeout=120) as connection:
        found = connection.execute(statement, args or None)  # type: ignore[arg-type]
        return found.fetchall() if found.description else []


class Base(DeclarativeBase):
    """The application's tables."""


class Customer(Base):
    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    orders: Mapped[list[Order]] = relationship(back_populates="customer")


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(sa.ForeignKey("customer.id"))
    total: Mapped[int]
    customer: Mapped[Customer] = relationship(back_populates="orders")


def test_an_application_uses_it(db: Database, vm_home: Home) -> None:
    engine = sa.create_engine(db.connection_url.replace("postgresql:", "postgresql+psycopg:"))
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        ada = Customer(name="Ada", orders=[Order(total=3), Order(total=4)])
        session.add_all([ada, Customer(name="Grace")])
        session.commit()
        session.add(Customer(name="Ada"))
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
        session.rollback()
        total = sa.select(sa.func.sum(Order.total)).join(Customer).where(Customer.name == "Ada")
        assert session.scalar(total) == 7
    engine.dispose()
    payload = bytes(range(256)) * 4096  # a MiB with every byte, both ways
    assert query(db.connection_url, "SELECT %s::bytea", payload) == [(payload,)]

    assert db.refresh().state is D.RUNNING
    assert db.info.server_version is not None
    assert db.info.server_version.startswith("17.")
    ((buffers,), *_) = query(
        db.connection_url, "SELECT pg_size_bytes(current_setting('shared_buffers'))"
    )
    assert 0.2 < int(str(buffers)) / (db.info.ram_mib << 20) < 0.3, (
        "it follows the machine's memory"
    )
    password = db.connection_url.partition("@")[0].rpartition(":")[2]
    kept = vm_home.databases / f"{db.id}.password"
    assert kept.read_text().strip() == password
    assert kept.stat().st_mode & 0o777 == 0o600
    for path in (vm_home.database, vm_home.daemon_log, vm_home.access_log):
        assert password.encode() not in path.read_bytes(), path
    for manifest in vm_home.snapshots.glob("*/manifest.json"):
        assert password.encode() not in manifest.read_bytes()


def test_bad_requests_are_told_and_change_nothing(db: Database, postgres: str) -> None:
    with pytest.raises(Conflict, match="shop"):
        Database.create("shop")
    with pytest.raises(InvalidRequest, match="too small"):
        Database.create("tiny", size="100m")
    with pytest.raises(InvalidRequest):
        Database.create("odd", size="many")
    with pytest.raises(InvalidRequest):
        db.grow("1023m")
    with pytest.raises(NotFound):
        Database.get("nobody")
    with pytest.raises(OutsideArchive, match="future"):
        db.clone("later", target_time=datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(OutsideArchive) as caught:
        db.clone("before", target_time=datetime(2020, 1, 1, tzinfo=UTC))
    assert caught.value.facts["recoverable_from"]
    url = db.connection_url
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url.replace("@", "x@"), connect_timeout=60)
    assert [d.name for d in Database.list()] == ["shop"]
    assert query(url, "SELECT 1") == [(1,)]


def test_a_connection_wakes_it_and_it_goes_on_where_it_was(db: Database) -> None:
    url = db.connection_url
    query(url, "CREATE TABLE IF NOT EXISTS sleep (n int)")
    query(url, "INSERT INTO sleep VALUES (1)")
    since = query(url, "SELECT pg_postmaster_start_time()")
    with psycopg.connect(url) as session:
        session.execute("SELECT 1")
        assert db.hibernate().state is D.HIBERNATED
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    assert query(url, "SELECT n FROM sleep") == [(1,)]
    assert query(url, "SELECT pg_postmaster_start_time()") == since, "the same server goes on"
    assert db.refresh().state is D.RUNNING


class Ledger:
    """Writers that note each id outside once its commit was acknowledged."""

    def __init__(self, url: str, writers: int) -> None:
        self.acknowledged: set[int] = set()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(url, n), daemon=True) for n in range(writers)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, url: str, writer: int) -> None:
        with contextlib.suppress(psycopg.Error), psycopg.connect(url) as connection:
            for n in range(1_000_000):
                if self._stop.is_set():
                    return
                number = writer * 1_000_000 + n
                connection.execute("INSERT INTO ledger VALUES (%s, repeat('x', 500))", (number,))
                connection.commit()
                self.acknowledged.add(number)

    def join(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def test_every_acknowledged_commit_outlives_a_killed_machine(db: Database, vm_home: Home) -> None:
    url = db.connection_url
    query(url, "CREATE TABLE IF NOT EXISTS ledger (id int PRIMARY KEY, filler text)")
    machine = Sandbox.get(str(db.refresh().sandbox_id))
    bench = "/usr/lib/postgresql/17/bin/pgbench"
    machine.exec(f"{bench} -i -q -s 1 postgres", user="postgres", check=True, timeout_seconds=120)
    storm = machine.exec(f"{bench} -c 2 -T 120 postgres", user="postgres", background=True)
    ledger = Ledger(url, writers=3)
    until = time.monotonic() + 60
    while len(ledger.acknowledged) < 60 and time.monotonic() < until:
        time.sleep(0.05)
    (vmm,) = [
        m for m in machines(vm_home) if machine.id in str(Path(f"/proc/{m.pid}/cwd").readlink())
    ]
    asyncio.run(vmm.kill(within_s=30))
    ledger.join()
    del storm
    assert len(ledger.acknowledged) >= 60
    found = {n for (n,) in query_when_back(url, "SELECT id FROM ledger")}
    assert ledger.acknowledged <= found
    assert len(found - ledger.acknowledged) <= 3, "at most what was under way"
    ((accounts, tellers),) = query(
        url,
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers)",
    )
    assert accounts == tellers, "pgbench's transactions are whole"
    assert db.refresh().sandbox_id != machine.id, "a new machine serves the same data"


def query_when_back(url: str, statement: str) -> list[tuple[object, ...]]:
    """Ask until the death of the machine has been noticed; the first that comes later gets a new one."""
    until = time.monotonic() + 120
    while True:
        try:
            return query(url, statement)
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def test_its_data_outlives_its_machine_and_an_upgrade_keeps_it(db: Database) -> None:
    url = db.connection_url
    query(url, "CREATE TABLE IF NOT EXISTS kept (n int)")
    query(url, "INSERT INTO kept VALUES (7)")
    before = str(db.refresh().sandbox_id)
    Sandbox.delete(before)
    assert db.refresh().state is D.DOWN
    assert query(url, "SELECT n FROM kept") == [(7,)]
    second = str(db.refresh().sandbox_id)
    info = db.upgrade(build=False)
    assert info.sandbox_id not in (before, second)
    assert query(url, "SELECT n FROM kept") == [(7,)]


def test_clones_go_their_own_way(db: Database) -> None:
    url = db.connection_url
    query(url, "CREATE TABLE IF NOT EXISTS branch (n int)")
    query(url, "INSERT INTO branch VALUES (1)")
    point = db.snapshot(label="one")
    query(url, "INSERT INTO branch VALUES (2)")
    clone = db.clone("shop-now")
    query(clone.connection_url, "INSERT INTO branch VALUES (3)")
    assert query(clone.connection_url, "SELECT n FROM branch ORDER BY n") == [(1,), (2,), (3,)]
    assert query(url, "SELECT n FROM branch ORDER BY n") == [(1,), (2,)]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(url.rpartition("@")[0] + "@" + clone.connection_url.rpartition("@")[2])
    older = clone.connection_url
    assert clone.reset_password() != older
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(older)
    assert query(clone.connection_url, "SELECT count(*) FROM branch") == [(3,)]
    clone.delete(keep_volume=True)
    volume = Volume.get("db-shop-now")
    assert volume.info.holders == ()
    volume.delete(snapshots=True)
    assert point.label == "one"


def test_it_can_be_had_as_it_was(db: Database, tmp_path: Path) -> None:
    url = db.connection_url
    query(url, "CREATE TABLE IF NOT EXISTS moment (n int)")
    query(url, "INSERT INTO moment VALUES (1)")
    ((then,),) = query(url, "SELECT clock_timestamp()")
    assert isinstance(then, datetime)
    query(url, "INSERT INTO moment VALUES (2)")
    query(url, "DROP TABLE IF EXISTS kept")
    past = db.clone("shop-then", target_time=then)
    assert query(past.connection_url, "SELECT n FROM moment ORDER BY n") == [(1,)]
    query(past.connection_url, "INSERT INTO moment VALUES (9)")
    assert query(url, "SELECT n FROM moment ORDER BY n") == [(1,), (2,)]
    past.delete()

    size = db.dump(tmp_path / "shop.dump")
    data = (tmp_path / "shop.dump").read_bytes()
    assert len(data) == size
    assert data.startswith(b"PGDMP")
    assert b"moment" in data
    with pytest.raises(Exception, match="nothing"):
        db.dump(tmp_path / "none.dump", database="nothing")
    assert [p.name for p in tmp_path.iterdir()] == ["shop.dump"]


LIBRARY = """
CREATE TABLE author (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    born date CHECK (born < '2030-01-01'),
    portrait bytea,
    tags text[],
    notes jsonb
);
CREATE TABLE book (
    id serial PRIMARY KEY,
    author int NOT NULL REFERENCES author ON DELETE CASCADE,
    title text COLLATE "C" NOT NULL,
    price numeric(10, 2)
);
CREATE INDEX book_by_price ON book (price DESC) WHERE price > 10;
CREATE VIEW shelf AS SELECT name, count(*) AS books FROM author JOIN book ON author = author.id GROUP BY name;
CREATE FUNCTION worth(int) RETURNS numeric LANGUAGE sql AS 'SELECT sum(price) FROM book WHERE author = $1';
COMMENT ON TABLE book IS 'it''s "all" \\ of them';
INSERT INTO author (name, born, portrait, tags, notes) VALUES
    ('Ada Žižková', '1815-12-10', decode('00ff5c275c', 'hex'), '{a,"b c",NULL}', '{"one": [1, null]}'),
    (E'tab\there', NULL, NULL, NULL, NULL);
INSERT INTO book (author, title, price) SELECT 1 + n % 2, 'title ' || n, n FROM generate_series(1, 500) n;
"""


def moving(url: str, stop: threading.Event) -> None:
    """Move prices between books, so that their sum stays as it is at every commit."""
    with psycopg.connect(url) as connection:
        for n in range(1_000_000):
            if stop.is_set():
                return
            one, other = n % 500 + 1, (n + 7) % 500 + 1
            connection.execute("UPDATE book SET price = price - 1 WHERE id = %s", (one,))
            connection.execute("UPDATE book SET price = price + 1 WHERE id = %s", (other,))
            connection.commit()


def test_a_dump_is_restored_whole_by_pg_restore(db: Database, tmp_path: Path) -> None:
    with psycopg.connect(db.connection_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE library")
    library = db.connection_url.rpartition("/")[0] + "/library"
    with psycopg.connect(library) as connection:
        connection.execute(LIBRARY)
    stop = threading.Event()
    writer = threading.Thread(target=moving, args=(library, stop), daemon=True)
    writer.start()
    try:
        db.dump(tmp_path / "moving.dump", database="library")
    finally:
        stop.set()
        writer.join(60)
    assert not writer.is_alive()
    db.dump(tmp_path / "still.dump", database="library")

    fresh = Database.create("restored")
    machine = Sandbox.get(str(fresh.info.sandbox_id))
    for name in ("moving", "still"):
        machine.filesystem.write(f"/tmp/{name}.dump", (tmp_path / f"{name}.dump").read_bytes())
        machine.exec(
            f"cd /usr/lib/postgresql/17/bin; ./createdb {name} &&"
            f" ./pg_restore --exit-on-error -d {name} /tmp/{name}.dump",
            user="postgres",
            cwd="/",
            check=True,
            timeout_seconds=120,
        )
    text = "/usr/lib/postgresql/17/bin/pg_dump {} | grep -v '^.*restrict '"
    source = Sandbox.get(str(db.refresh().sandbox_id))
    whole = source.exec(text.format("library"), user="postgres", cwd="/", check=True).stdout
    assert "title 500" in whole
    assert "Ada Žižková" in whole
    again = machine.exec(text.format("still"), user="postgres", cwd="/", check=True).stdout
    assert again == whole
    url = fresh.connection_url.rpartition("/")[0]
    for name in ("moving", "still"):
        assert query(f"{url}/{name}", "SELECT sum(price)::int FROM book") == [(125250,)], (
            "of one instant"
        )
    assert query(f"{url}/still", "SELECT nextval('book_id_seq')") == [(501,)]
    with pytest.raises(psycopg.errors.CheckViolation):
        query(f"{url}/still", "INSERT INTO author (name, born) VALUES ('late', '2031-01-01')")
    fresh.delete()
    with psycopg.connect(db.connection_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE library WITH (FORCE)")


def test_a_full_volume_takes_it_down_and_it_comes_back(db: Database) -> None:
    """Once by itself, by what it has in reserve; then by growing."""
    url = db.connection_url
    query(url, "CREATE TABLE IF NOT EXISTS filling (n int, filler text)")
    query(url, "INSERT INTO filling VALUES (0, 'kept')")
    machine = Sandbox.get(str(db.refresh().sandbox_id))
    free = "$(df --output=avail -B1 /srv/postgres | tail -1)"
    # an archive gives way first, which takes its time
    fill = f"ls /srv/postgres; rm -f /srv/postgres/archive/*; fallocate -l $(({free} - (4 << 20))) /srv/postgres/ballast"
    there = machine.exec(fill, user="root", cwd="/", check=True).stdout
    assert "reserve" in there.split()
    insert = "INSERT INTO filling SELECT n, repeat('x', 1000) FROM generate_series(1, 12000) n"

    with pytest.raises(psycopg.errors.DiskFull):
        query(url, insert)
    # the log alone, until there is no room for its next segment
    log = "SELECT count(pg_logical_emit_message(true, '', repeat('x', 1000000))) FROM generate_series(1, 200)"
    with pytest.raises(psycopg.OperationalError):
        query(url, log)
    assert query_when_back(url, "SELECT n, filler FROM filling") == [(0, "kept")]
    told = ""
    until = time.monotonic() + 120
    while "torpor db grow shop" not in told:
        assert time.monotonic() < until, told
        with pytest.raises(psycopg.OperationalError) as caught:
            query(url, log)
        told = str(caught.value)
    assert "volume is full" in told
    db.grow("2g")
    assert query(url, "SELECT n, filler FROM filling") == [(0, "kept")]
    query(url, insert)
    assert query(url, "SELECT count(*), sum(n)::int FROM filling") == [(12001, 72006000)]
    ((log_mib,),) = query(url, "SELECT pg_size_bytes(current_setting('max_wal_size')) >> 20")
    assert 150 < int(str(log_mib)) < 210, "the log's share follows"
    left = machine.exec(
        "ls /srv/postgres; rm /srv/postgres/ballast", user="root", cwd="/", check=True
    )
    assert "reserve" in left.stdout.split(), "made anew"


@pytest.mark.slow
def test_an_upgrade_to_a_template_that_was_built_anew(db: Database, postgres: str) -> None:
    """A real build, of minutes; an upgrade without one is above."""
    before, machine = Templates.get(postgres).digest, str(db.refresh().sandbox_id)
    url = db.connection_url
    application = sa.create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), pool_pre_ping=True
    )
    with application.begin() as connection:
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS upgraded (n int)"))
        connection.execute(sa.text("INSERT INTO upgraded VALUES (7)"))
    info = db.upgrade()
    assert Templates.get(postgres).digest != before
    assert Sandbox.get(str(info.sandbox_id)).info.template_digest == Templates.get(postgres).digest
    assert info.sandbox_id != machine
    assert str(info.server_version).startswith("17.")
    with application.begin() as connection:  # the same pool: it finds its connection broken
        assert connection.execute(sa.text("SELECT n FROM upgraded")).scalar() == 7
        connection.execute(sa.text("INSERT INTO upgraded VALUES (8)"))
    application.dispose()
    assert query(url, "SELECT count(*) FROM upgraded") == [(2,)]
    made = Database.create("after-upgrade")  # from a seed of the new build
    digest = Sandbox.get(str(made.info.sandbox_id)).info.template_digest
    assert digest == Templates.get(postgres).digest
    made.delete()
    then = db.clone("shop-upgraded")
    assert query(then.connection_url, "SELECT count(*) FROM upgraded") == [(2,)]
    then.delete()


def test_a_sandbox_reaches_its_database_without_a_network(db: Database, postgres: str) -> None:
    query(db.connection_url, "CREATE TABLE IF NOT EXISTS notes (text text)")
    with (
        Sandbox.create(template=postgres, network="none") as agent,
        Sandbox.create(template=postgres, network="none") as other,
    ):
        url = db.attach(agent.id)
        psql = ["/usr/lib/postgresql/17/bin/psql", "-XAtc"]
        agent.exec([*psql, "INSERT INTO notes VALUES ('from inside')", url], check=True)
        assert query(db.connection_url, "SELECT text FROM notes") == [("from inside",)]
        assert other.exec([*psql, "SELECT 1", url]).exit_code != 0, "only its own"
        agent.hibernate()
        again = (
            f"until {shlex.join([*psql, 'SELECT count(*) FROM notes', url])}; do sleep 0.2; done"
        )
        found = agent.exec(again, check=True, timeout_seconds=60)  # it is served anew in a moment
        assert found.stdout == "1\n"
        other.exec(
            "nohup python3 -m http.server 5432 --bind 127.0.0.1 >/dev/null 2>&1 &\n"
            "until ss -Hltn | grep -q :5432; do sleep 0.1; done",
            check=True,
            timeout_seconds=60,
        )
        with pytest.raises(Conflict, match="listened on"):
            db.attach(other.id)
        assert [a.sandbox_id for a in db.refresh().attachments] == [agent.id]
        db.detach(agent.id)
        assert agent.exec([*psql, "SELECT 1", url]).exit_code != 0
    with pytest.raises((NotFound, WrongState)):
        db.attach(agent.id)


def test_pandastack_s_client_makes_one_and_deletes_it(
    db: Database, panda: pandastack.Client, vm_home: Home
) -> None:
    made = panda.databases.create(label="Going")
    assert (made["id"], made["status"]) == ("going", "running")
    query(made["connection_url"], "CREATE TABLE theirs (n int)")
    assert query(made["connection_url"], "SELECT count(*) FROM theirs") == [(0,)]
    again = panda.databases.reset_credentials("going")
    assert query(again["connection_url"], "SELECT count(*) FROM theirs") == [(0,)]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(made["connection_url"])
    info = Database.get("going").info
    password = vm_home.databases / f"{info.id}.password"
    assert password.exists()
    panda.databases.delete("going")
    assert [found["id"] for found in panda.databases.list()] == ["shop"]
    assert not password.exists()
    for gone in (Database.get, lambda name: Volume.get(f"db-{name}")):
        with pytest.raises(NotFound):
            gone("going")
    assert str(info.sandbox_id) not in [s.id for s in Sandbox.list()]
