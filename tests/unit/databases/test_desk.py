"""The desk over a fake engine: what is made is there whole or not at all, and the next daemon tidies up."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import re
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.fakes.engine import FakeEngine
from torpor.base.home import Home
from torpor.databases import query, server
from torpor.databases.branches import CloneSpec
from torpor.databases.desk import DatabaseDesk
from torpor.databases.making import first_name
from torpor.db.database import Database as Store
from torpor.db.databases import DatabaseRow, DatabaseRows
from torpor.errors import (
    Conflict,
    GuestFailed,
    InsufficientResources,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OutsideArchive,
    TorporError,
    VmmFailed,
    WrongState,
)
from torpor.guest.port import Guest
from torpor.model import SandboxId, SandboxInfo, SandboxSpec, SandboxState
from torpor.model_databases import DatabaseId, DatabaseSpec, DatabaseState, DatabaseStep

pytestmark = pytest.mark.anyio

WAL = "000000010000000000000001"
SPEC = DatabaseSpec(name="shop", ram_mib=1024)  # not the template's: no seed is needed


class Engine(FakeEngine):
    """Lets go of a sandbox's volumes when it is deleted, as the real one does."""

    async def delete(self, sandbox_id: SandboxId) -> SandboxInfo:
        for info in await self.volumes.of_sandbox(sandbox_id):
            holders = tuple(h for h in info.holders if h.sandbox_id != sandbox_id)
            self.volumes.found[info.id] = replace(info, holders=holders)
        return await super().delete(sandbox_id)


class Machine:
    """What is asked of PostgreSQL's machines, and where they fail."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails_at: str | None = None
        self.verifiers: list[str] = []
        self.queries: list[str] = []
        self.emptied = 0

    async def run(
        self, _guest: Guest, command: object, *, user: str = "root", timeout_s: float = 0
    ) -> str:
        text = command if isinstance(command, str) else " ".join(command)  # type: ignore[arg-type]
        self.asked.append(text)
        if self.fails_at is not None and self.fails_at in text:
            raise GuestFailed(f"PostgreSQL's machine refused: {self.fails_at}")
        if "PASSWORD" in text:
            self.verifiers += re.findall(r"SCRAM-SHA-256\$[^' ]+", text)
        return WAL

    async def ask(self, password: str, _port: int, statements: Sequence[str]) -> str:
        """Answer a client that has a password which some server here was given."""
        if self.fails_at == "query":
            raise TorporError("the database does not answer")
        if not any(is_of(password, verifier) for verifier in self.verifiers):
            raise TorporError("the database does not answer: password authentication failed")
        self.queries += statements
        for text in statements:
            self.verifiers += re.findall(r"SCRAM-SHA-256\$[^' ]+", text)
        return "17.6" if "server_version" in statements[-1] else WAL

    async def empty_archive(self, _guest: Guest) -> None:
        """Note that it was asked for."""
        self.emptied += 1

    def stand_in(self, patch: pytest.MonkeyPatch) -> None:
        """Be what is asked, in the place of a real server and its machine."""
        patch.setattr(server, "run", self.run)
        patch.setattr(server, "empty_archive", self.empty_archive)
        patch.setattr(query, "ask", self.ask)


def is_of(password: str, verifier: str) -> bool:
    """Return whether a SCRAM verifier is that of a password."""
    _, salted, keys = verifier.split("$")
    rounds, _, salt = salted.partition(":")
    key = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(rounds))
    stored = hashlib.sha256(hmac.digest(key, b"Client Key", "sha256")).digest()
    return base64.b64decode(keys.partition(":")[0]) == stored


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    found.stand_in(monkeypatch)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.prepare()
    Store.open(found.database).close()
    return found


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    found = Engine()
    yield found
    await found.aclose()


async def opened(home: Home, engine: Engine) -> DatabaseDesk:
    reports: list[str] = []
    found = DatabaseDesk(
        home,
        engine,
        DatabaseRows.attach(home.database),
        lambda name, exc: reports.append(f"{name}: {exc}"),
    )
    await found.start()
    return found


@pytest.fixture
async def desk(home: Home, engine: Engine, machine: Machine) -> AsyncIterator[DatabaseDesk]:
    found = await opened(home, engine)
    yield found
    await found.aclose()


async def test_a_create_tells_its_steps_and_leaves_a_database(
    desk: DatabaseDesk, engine: Engine, home: Home, machine: Machine
) -> None:
    steps: list[DatabaseStep] = []
    made = await desk.create(SPEC, steps.append)
    assert made.state is DatabaseState.RUNNING
    assert made.server_version == "17.6"
    assert [s.step for s in steps][-4:] == ["volume", "machine", "password", "connection"]
    assert steps[0].step == "template", "it is built when it is not there"
    (volume,) = await engine.volumes.list()
    assert (volume.id, volume.name) == (made.volume_id, "db-shop")
    url = await desk.url("shop")
    assert url.startswith("postgresql://postgres:")
    assert url.endswith(f"@127.0.0.1:{made.port}/postgres")
    password = url.partition("@")[0].rpartition(":")[2]
    assert machine.verifiers[0].startswith("SCRAM-SHA-256$")
    assert not any(password in text for text in machine.asked), "the machine never hears it"
    assert password.encode() not in home.database.read_bytes()
    assert made.recoverable_from is not None
    assert [d.name for d in await desk.list()] == ["shop"]


@pytest.mark.parametrize("step", ["systemctl start", "ALTER ROLE", "query"])
async def test_a_create_that_fails_leaves_nothing(
    desk: DatabaseDesk, engine: Engine, home: Home, machine: Machine, step: str
) -> None:
    machine.fails_at = step
    with pytest.raises(TorporError):
        await desk.create(SPEC)
    assert await desk.list() == ()
    assert await engine.volumes.list() == ()
    assert {s.info.state for s in engine.sandboxes.values()} <= {SandboxState.DELETED}
    assert list(home.databases.iterdir()) == []
    machine.fails_at = None
    assert (await desk.create(SPEC)).name == "shop", "the name is free"


async def test_what_cannot_be_is_refused_before_anything_is_made(
    desk: DatabaseDesk, engine: Engine
) -> None:
    await desk.create(SPEC)
    for spec, error in (
        (SPEC, Conflict),
        (replace(SPEC, name="tiny", size_bytes=1 << 20), InvalidRequest),
        (replace(SPEC, name="Odd Name"), InvalidRequest),
        (replace(SPEC, name="n" * 60), InvalidRequest),
        (replace(SPEC, name="idle", idle_seconds=0), InvalidRequest),
    ):
        with pytest.raises(error):
            await desk.create(spec)

    async def full(name: str, size_gib: float, *, workspace: str = "default") -> None:
        raise LimitExceeded("all volumes together would be 2 GiB; 1 GiB are allowed")

    engine.volumes.check_new = full  # type: ignore[method-assign]
    with pytest.raises(LimitExceeded):
        await desk.create(replace(SPEC, name="more"))
    assert len(await desk.list()) == len(await engine.volumes.list()) == 1


async def test_a_time_outside_the_archive_is_refused_with_what_it_reaches(
    desk: DatabaseDesk,
) -> None:
    made = await desk.create(SPEC)
    now = datetime.now(UTC)
    for wanted, why in (
        (now + timedelta(hours=1), "future"),
        (now - timedelta(days=9999), "so old"),
    ):
        with pytest.raises(OutsideArchive, match=why) as caught:
            await desk.clone("shop", CloneSpec(name="then", target_time=wanted))
        assert made.recoverable_from is not None
        oldest = made.recoverable_from.isoformat()
        assert caught.value.facts["recoverable_from"] == oldest
        assert caught.value.hint == (
            f"it can be had from {oldest} until now; or as it is now: torpor db clone shop NEW"
        )
    (first,) = await desk.snapshots("shop")
    await desk.delete_snapshot("shop", first.id)
    with pytest.raises(OutsideArchive, match="so old") as caught:
        await desk.clone("shop", CloneSpec(name="then", target_time=now))
    assert caught.value.hint == "as it is now: torpor db clone shop NEW"
    assert caught.value.facts["recoverable_from"] is None
    with pytest.raises(InvalidRequest, match="time zone"):
        await desk.clone(
            "shop",
            CloneSpec(name="then", target_time=datetime(2026, 1, 1)),  # noqa: DTZ001
        )
    with pytest.raises(NotFound):
        await desk.clone("shop", CloneSpec(name="then", snapshot="nobody"))
    with pytest.raises(InvalidRequest, match="both"):
        await desk.clone("shop", CloneSpec(name="then", snapshot="x", target_time=now))
    assert len(await desk.list()) == 1


async def test_the_next_daemon_removes_what_was_half_made_and_goes_on_with_the_rest(
    home: Home, engine: Engine, machine: Machine
) -> None:
    first = await opened(home, engine)
    kept = await first.create(SPEC)
    await first.aclose()
    sandbox = await engine.create(SandboxSpec(template="base"))
    row = DatabaseRow(
        id=DatabaseId("db_00000000000000000001"),
        name="half",
        created_at=datetime(2020, 1, 1, tzinfo=UTC),
        state="creating",
        size_bytes=1 << 30,
        ram_mib=512,
        vcpus=1,
        sandbox_id=sandbox.id,
    )
    rows = DatabaseRows.attach(home.database)
    rows.insert(row)
    rows.close()
    await engine.volumes.create(first_name(row))
    (home.databases / f"{row.id}.password").write_text("x" * 32)

    second = await opened(home, engine)
    try:
        assert [d.name for d in await second.list()] == ["shop"]
        assert (await second.get("shop")).port == kept.port
        assert [v.name for v in await engine.volumes.list()] == ["db-shop"]
        assert engine.sandboxes[sandbox.id].info.state is SandboxState.DELETED
        assert [p.name for p in home.databases.iterdir()] == [f"{kept.id}.password"]
    finally:
        await second.aclose()


async def test_a_machine_that_is_gone_is_replaced_for_who_connects(
    desk: DatabaseDesk, engine: Engine, machine: Machine
) -> None:
    made = await desk.create(SPEC)
    await engine.delete(SandboxId(str(made.sandbox_id)))
    assert (await desk.get("shop")).state is DatabaseState.DOWN
    machine.fails_at = "systemctl start"
    with pytest.raises(GuestFailed):
        await desk.wake("shop")
    found = await desk.get("shop")
    assert (found.state, found.volume_id) == (DatabaseState.DOWN, made.volume_id)
    machine.fails_at = None
    woken = await asyncio.gather(*(desk.wake("shop") for _ in range(5)))
    assert {w.sandbox_id for w in woken} == {woken[0].sandbox_id}, "one machine for all"
    assert woken[0].sandbox_id != made.sandbox_id


async def test_a_server_that_does_not_run_is_started_for_who_connects(
    desk: DatabaseDesk, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a reboot of its machine, which does not start it."""
    made = await desk.create(SPEC)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listeners: list[asyncio.Server] = []

    async def hello(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async def run(guest: Guest, command: object, **options: Any) -> str:
        found = await machine.run(guest, command, **options)
        if "systemctl start" in str(command) and not listeners:
            listeners.append(await asyncio.start_server(hello, "127.0.0.1", port))
        return found

    monkeypatch.setattr(server, "PORT", port)
    monkeypatch.setattr(server, "run", run)
    machine.asked.clear()
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        assert await reader.read() == b"hello"
        writer.close()
    assert len([text for text in machine.asked if "systemctl start" in text]) == 1
    listeners[0].close()
    machine.fails_at = "systemctl start"
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
    writer.write_eof()
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_a_server_that_finds_no_room_is_told_as_that_until_it_has_grown(
    desk: DatabaseDesk, engine: Engine, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await desk.create(SPEC)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(server, "PORT", free.getsockname()[1])
    done: list[str] = []

    async def run(guest: Guest, command: object, **options: Any) -> str:
        found = await machine.run(guest, command, **options)
        if "systemctl start" in str(command) and (await desk.get("shop")).size_bytes == 1 << 30:
            grown = [v.size_bytes for v in await engine.volumes.list()]
            if grown == [1 << 30]:
                raise GuestFailed("PostgreSQL's machine refused: PANIC\ntorpor: the volume is full")
        if "systemctl start" in str(command):
            done.append("started")
        return found

    monkeypatch.setattr(server, "run", run)
    url = await desk.url("shop")
    with pytest.raises(psycopg.OperationalError, match=r"volume is full(.|\n)*torpor db grow shop"):
        await asyncio.to_thread(psycopg.connect, url, connect_timeout=30)
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b"", "it is no client of PostgreSQL's"
    writer.close()
    assert done == []
    assert (await desk.grow("shop", 2 << 30)).size_bytes == 2 << 30
    assert done == ["started"]

    await engine.delete(SandboxId(str(made.sandbox_id)))  # nor does it come up without its machine
    made = await desk.get("shop")
    assert made.state is DatabaseState.DOWN
    with monkeypatch.context() as patch:
        patch.setattr(engine, "create", _no_machine)
        with pytest.raises(psycopg.OperationalError, match=r"vmm\.failed") as caught:
            await asyncio.to_thread(psycopg.connect, url, connect_timeout=30)
    assert "secret" not in str(caught.value), "who connects has proved nothing yet"
    assert (await desk.grow("shop", 3 << 30)).state is DatabaseState.RUNNING


async def test_a_reserve_that_was_given_up_is_made_again_by_the_way(
    desk: DatabaseDesk, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await desk.create(SPEC)
    answers = ["", "kept"]

    async def run(guest: Guest, command: object, **options: Any) -> str:
        found = await machine.run(guest, command, **options)
        return answers.pop(0) if str(command).endswith("keep_room") else found

    monkeypatch.setattr(server, "run", run)
    for left in (["kept"], [], []):
        await desk.keep(made.id)
        assert answers == left


async def _no_machine(_spec: SandboxSpec) -> SandboxInfo:
    raise VmmFailed("a secret of the host")


async def test_a_new_password_that_was_not_set_is_set_before_anyone_connects(
    desk: DatabaseDesk, machine: Machine
) -> None:
    await desk.create(SPEC)
    before = await desk.url("shop")
    machine.fails_at = "ALTER ROLE"
    with pytest.raises(GuestFailed):
        await desk.reset_password("shop")
    after = await desk.url("shop")
    assert after != before
    machine.fails_at = None
    machine.verifiers.clear()
    await desk.wake("shop")
    await desk.wake("shop")
    assert len(machine.verifiers) == 1


async def test_deleting_removes_all_or_leaves_the_volume(
    desk: DatabaseDesk, engine: Engine, home: Home, machine: Machine
) -> None:
    for name, keeps in (("gone", False), ("kept", True)):
        made = await desk.create(replace(SPEC, name=name))
        await desk.delete(name, keep_volume=keeps)
        with pytest.raises(NotFound):
            await desk.get(made.id)
        assert any(t.startswith("systemctl stop") for t in machine.asked) is keeps
    assert [v.name for v in await engine.volumes.list()] == ["db-kept"]
    assert list(home.databases.iterdir()) == []
    with pytest.raises(NotFound):
        await desk.delete("gone")


async def test_snapshots_have_labels_and_go_when_they_are_old(
    desk: DatabaseDesk, engine: Engine
) -> None:
    await desk.create(SPEC)
    one = await desk.snapshot("shop", label="one")
    with pytest.raises(Conflict, match="one"):
        await desk.snapshot("shop", label="one")
    assert [s.label for s in await desk.snapshots("shop")] == ["one", None]
    await desk.delete_snapshot("shop", one.id)
    assert len(await desk.snapshots("shop")) == len(engine.volumes.points) == 1
    (old,) = await desk.snapshots("shop")
    await desk.keep(DatabaseId((await desk.get("shop")).id))  # the fake's are of 2026-01-01
    kept = await desk.snapshots("shop")
    assert old not in kept
    assert len(kept) == 1


async def test_a_snapshot_that_is_not_written_down_leaves_its_label_free(
    desk: DatabaseDesk, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await desk.create(SPEC)
    real = DatabaseRows.save

    def full(rows: DatabaseRows, row: DatabaseRow) -> None:
        if any(s.label == "one" for s in row.snapshots):
            raise InsufficientResources("the disk is full")
        real(rows, row)

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseRows, "save", full)
        with pytest.raises(InsufficientResources):
            await desk.snapshot("shop", label="one")
    assert [s.label for s in await desk.snapshots("shop")] == [None]
    one = await desk.snapshot("shop", label="one")
    found = {s.id for s in await engine.volumes.snapshots(str(made.volume_id))}
    assert found == {s.id for s in await desk.snapshots("shop")}
    await desk.delete_snapshot("shop", one.id)
    assert len(await engine.volumes.snapshots(str(made.volume_id))) == 1


async def test_attaching_to_what_has_ended_is_refused(desk: DatabaseDesk, engine: Engine) -> None:
    await desk.create(SPEC)
    sandbox = await engine.create(SandboxSpec(template="base"))
    await engine.delete(sandbox.id)
    with pytest.raises(WrongState):
        await desk.attach("shop", sandbox.id)
    with pytest.raises(NotFound):
        await desk.attach("shop", "sbx_00000000000000000001")
    with pytest.raises(NotFound):
        await desk.detach("shop", sandbox.id)
    assert (await desk.get("shop")).attachments == ()


async def test_an_archive_is_emptied_of_what_is_there_and_goes() -> None:
    class Archive:
        """What a guest says of a folder from which one file goes by itself."""

        removed: list[str] = []  # noqa: RUF012

        async def list_dir(self, path: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(path=f"{path}/{name}") for name in ("1", "2", "3.part")]

        async def remove(self, path: str) -> None:
            if path.endswith("2"):
                raise NotFound(path)
            self.removed.append(path)

    await server.empty_archive(Archive())  # type: ignore[arg-type]
    assert Archive.removed == ["/srv/postgres/archive/1", "/srv/postgres/archive/3.part"]
