"""Databases as PandaStack's client asks for them; the servers themselves are tried elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pandastack
import pytest
from pandastack.exceptions import BadRequestError, NotFoundError, ServerError

from torpor.base.ids import new_id
from torpor.databases.branches import CloneSpec
from torpor.databases.desk import DatabaseDesk
from torpor.databases.shelf import no_database
from torpor.errors import InsufficientResources
from torpor.model_databases import (
    DatabaseId,
    DatabaseInfo,
    DatabaseSpec,
    DatabaseState,
    DatabaseStep,
    Progress,
)

MADE_IN_S = 0.3
METHODS = (
    *("create", "clone", "list", "get", "url", "delete", "wake", "set_idle", "reset_password"),
)


class Servers:
    """Stands for the desk behind the routes: what databases there are."""

    def __init__(self) -> None:
        self.there: dict[str, DatabaseInfo] = {}
        self.fails = False
        self.password = "p@ss/1"

    async def make(self, name: str, spec: DatabaseSpec, progress: Progress) -> DatabaseInfo:
        progress(DatabaseStep("machine", "restoring"))
        await asyncio.sleep(MADE_IN_S)
        if self.fails:
            raise InsufficientResources("no room for a volume", hint="free some")
        info = DatabaseInfo(
            id=DatabaseId(new_id("db")),
            name=name,
            state=DatabaseState.RUNNING,
            created_at=datetime.now(UTC),
            size_bytes=1 << 30,
            ram_mib=spec.ram_mib or 1024,
            vcpus=spec.vcpus or 1,
            idle_seconds=spec.idle_seconds,
            sandbox_id=new_id("sbx"),
            volume_id=new_id("vol"),
            port=5433,
            server_version="17.1",
            parent=None,
            recoverable_from=None,
            workspace=spec.workspace,
        )
        self.there[info.id] = info
        return info

    def found(self, name: str) -> DatabaseInfo:
        for info in self.there.values():
            if name in (info.id, info.name):
                return info
        raise no_database(name)

    async def create(self, spec: DatabaseSpec, progress: Progress) -> DatabaseInfo:
        return await self.make(spec.name, spec, progress)

    async def clone(self, name: str, spec: CloneSpec, progress: Progress) -> DatabaseInfo:
        source = self.found(name)
        made = await self.make(spec.name, DatabaseSpec(name=spec.name), progress)
        self.there[made.id] = replace(made, parent=source.id)
        return self.there[made.id]

    async def list(self) -> tuple[DatabaseInfo, ...]:
        return tuple(self.there.values())

    async def get(self, name: str) -> DatabaseInfo:
        return self.found(name)

    async def url(self, name: str) -> str:
        info = self.found(name)
        return f"postgresql://postgres:p%40ss%2F1@127.0.0.1:{info.port}/postgres"

    async def delete(self, name: str, *, keep_volume: bool = False) -> None:
        del self.there[self.found(name).id]

    async def wake(self, name: str) -> DatabaseInfo:
        info = replace(self.found(name), state=DatabaseState.RUNNING)
        self.there[info.id] = info
        return info

    async def set_idle(self, name: str, idle_seconds: int | None) -> DatabaseInfo:
        info = replace(self.found(name), idle_seconds=idle_seconds)
        self.there[info.id] = info
        return info

    async def reset_password(self, name: str) -> str:
        return (await self.url(name)).replace("ss%2F1", "new")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    found = Servers()
    for name in METHODS:
        method = getattr(found, name)
        monkeypatch.setattr(DatabaseDesk, name, lambda _, *a, m=method, **kw: m(*a, **kw))
    return found


def test_a_database_is_polled_until_it_runs(panda: pandastack.Client, servers: Servers) -> None:
    made = panda.databases.create(label="My DB", size="4g")
    assert made["id"] == "my-db"
    assert made["status"] == "running"
    assert made["connection_url"].startswith("postgresql://postgres:")
    assert (made["username"], made["password"], made["port"]) == ("postgres", "p@ss/1", 5433)
    assert (made["size"], made["always_on"]) == ("4g", False)
    assert isinstance(made["created_at"], int)
    (listed,) = panda.databases.list()
    assert listed["id"] == "my-db"
    assert listed["connection_url"] is None
    assert panda.databases.connection("my-db")["connection_url"] == made["connection_url"]
    assert panda.databases.reset_credentials("my-db")["password"] == "p@new"
    panda.databases.delete("my-db")
    with pytest.raises(NotFoundError):
        panda.databases.get("my-db")


def test_labels_need_not_be_unique(panda: pandastack.Client, servers: Servers) -> None:
    one, two = panda.databases.create(label="x"), panda.databases.create(label="x", always_on=True)
    assert one["id"] == "x"
    assert two["id"].startswith("x-")
    assert two["always_on"] is True
    assert panda.databases.create()["id"] == "db"
    long = panda.databases.create(label=f"{'a' * 55}-{'b' * 40}")
    assert long["id"] == "a" * 55


def test_a_database_that_could_not_be_made_says_why(
    panda: pandastack.Client, servers: Servers
) -> None:
    servers.fails = True
    with pytest.raises(RuntimeError, match=r"no room for a volume \(free some\)"):
        panda.databases.create(label="full")
    assert panda.databases.get("full")["status"] == "failed"
    panda.databases.delete("full")
    with pytest.raises(NotFoundError):
        panda.databases.get("full")


def test_one_that_is_being_made_is_not_deleted(panda: pandastack.Client, servers: Servers) -> None:
    begun = panda.session.post(f"{panda.api_url}/v1/databases", json={"label": "soon"})
    assert begun.status_code == 202
    assert begun.json()["status"] == "provisioning"
    assert panda.databases.get("soon")["status"] == "provisioning"
    with pytest.raises(BadRequestError, match="being made"):
        panda.databases.delete("soon")
    assert panda.databases.wait_until_ready("soon", timeout=20)["status"] == "running"


def test_sleep_and_wake(panda: pandastack.Client, servers: Servers) -> None:
    panda.databases.create(label="sleepy")
    info = servers.found("sleepy")
    servers.there[info.id] = replace(info, state=DatabaseState.HIBERNATED)
    assert panda.databases.get("sleepy")["status"] == "hibernated"
    panda.databases.wake("sleepy")
    assert panda.databases.wait_until_ready("sleepy", timeout=20)["status"] == "running"


def test_always_on(panda: pandastack.Client, servers: Servers) -> None:
    made = panda.databases.create(label="awake")
    assert made["always_on"] is False
    assert panda.databases.update("awake", always_on=True)["always_on"] is True
    assert panda.databases.update("awake", always_on=False)["always_on"] is False
    with pytest.raises(BadRequestError):
        panda.databases.update("awake")


def test_clones(panda: pandastack.Client, servers: Servers) -> None:
    panda.databases.create(label="source", size="1g")
    made = panda.databases.clone("source", target_time="2026-08-06T09:30:00Z", size="1g")
    assert made["id"] == "source-clone"
    assert made["cloned_from"] is not None
    with pytest.raises(BadRequestError, match="time zone"):
        panda.databases.clone("source", target_time="2026-08-06T09:30:00")
    with pytest.raises(ServerError, match="another size"):
        panda.databases.clone("source", size="16g")


def test_what_is_not_offered_says_so(panda: pandastack.Client, servers: Servers) -> None:
    panda.databases.create(label="one")
    with pytest.raises(ServerError, match="does not offer"):
        panda.databases.failover("one")
