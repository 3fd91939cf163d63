"""Databases over REST, with the SDK and on the command line, with the fake engine and no PostgreSQL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.conftest import Rest
from tests.contract.api.test_cli import Cli
from tests.fakes.serving import ServerThread
from tests.unit.databases.test_desk import Machine
from torpor import AsyncDatabase, Database
from torpor.errors import Conflict, GuestFailed, InvalidRequest, NotFound, OutsideArchive
from torpor.model_databases import DatabaseState, DatabaseStep
from torpor.server.wire_databases import DatabaseListWire, DatabaseWire


@pytest.fixture(autouse=True)
def machine(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """What is asked of the databases' machines; whatever a test leaves is deleted."""
    found = Machine()

    found.stand_in(monkeypatch)
    yield found
    found.fails_at = None
    for database in Database.list():
        database.delete()


@pytest.fixture
def cli() -> Cli:
    return Cli()


BODY: dict[str, Any] = {"name": "shop", "ram_mib": 1024}


def test_rest(rest: Rest) -> None:
    made = rest.ok("POST", "/v1/databases", json=BODY, status=201)
    DatabaseWire.model_validate(made)
    assert (made["state"], made["size_bytes"], made["ram_mib"]) == ("running", 1 << 30, 1024)
    assert "password" not in str(made)
    rest.fails("POST", "/v1/databases", 409, "object.conflict", json=BODY)
    for bad in ({"size": "1m"}, {"size": "many"}, {"name": "No"}, {"ram_mib": 1}, {"extra": 1}):
        body = {**BODY, "name": "other", **bad}
        rest.fails("POST", "/v1/databases", 400, "request.invalid", json=body)
    found = rest.ok("GET", "/v1/databases")
    DatabaseListWire.model_validate(found)
    assert found["databases"] == [made]
    assert rest.ok("GET", f"/v1/databases/{made['id']}") == made
    rest.fails("GET", "/v1/databases/none", 404, "object.not_found")
    url = rest.ok("GET", "/v1/databases/shop/connection")["connection_url"]
    assert url.startswith("postgresql://postgres:")
    changed = rest.ok("PATCH", "/v1/databases/shop", json={"idle_seconds": 60})
    assert changed["idle_seconds"] == 60
    assert rest.ok("POST", "/v1/databases/shop/hibernate")["state"] == "hibernated"
    assert rest.ok("POST", "/v1/databases/shop/wake")["state"] == "running"
    grown = rest.ok("POST", "/v1/databases/shop/grow", json={"size": "2g"})
    assert grown["size_bytes"] == 2 << 30
    point = rest.ok("POST", "/v1/databases/shop/snapshots", json={"label": "a"}, status=201)
    listed = rest.ok("GET", "/v1/databases/shop/snapshots")["snapshots"]
    assert listed[0] == point
    body = {"name": "copy", "snapshot": "a"}
    copy = rest.ok("POST", "/v1/databases/shop/clone", json=body, status=201)
    assert copy["parent"] == made["id"]
    past = {"name": "past", "target_time": "2000-01-01T00:00:00Z"}
    failure = rest.fails(
        "POST", "/v1/databases/shop/clone", 409, "database.outside_archive", json=past
    )
    assert failure["facts"]["recoverable_from"]
    rest.ok("DELETE", "/v1/databases/shop/snapshots/a", status=204)
    other = rest.ok("POST", "/v1/databases/shop/reset-password")["connection_url"]
    assert other != url
    upgraded = rest.ok("POST", "/v1/databases/shop/upgrade", json={"build": False})
    assert upgraded["sandbox_id"] != made["sandbox_id"]
    rest.fails("DELETE", "/v1/databases/shop/attachments/sbx_x", 404, "object.not_found")
    rest.ok("DELETE", "/v1/databases/shop", params={"keep_volume": True}, status=204)
    rest.fails("GET", "/v1/databases/shop", 404, "object.not_found")
    assert "db-shop" in [v["name"] for v in rest.ok("GET", "/v1/volumes")["volumes"]]


def test_a_create_streams_its_steps_and_its_failure(rest: Rest, machine: Machine) -> None:
    events = rest.events("POST", "/v1/databases/stream", json=BODY)
    assert events[-1][0] == "done"
    assert events[-1][1]["name"] == "shop"
    assert [e[1]["step"] for e in events[:-1]][-2:] == ["password", "connection"]
    machine.fails_at = "systemctl start"
    *_, (name, failure) = rest.events(
        "POST", "/v1/databases/stream", json={**BODY, "name": "other"}
    )
    assert (name, failure["code"]) == ("error", "guest.failed")
    assert [d["name"] for d in rest.ok("GET", "/v1/databases")["databases"]] == ["shop"]


def test_the_sdk(machine: Machine, tmp_path: Path) -> None:
    steps: list[DatabaseStep] = []
    made = Database.create("shop", ram_mib=1024, progress=steps.append)
    assert steps[-1].step == "connection"
    assert made.info.state is DatabaseState.RUNNING
    assert made.connection_url == Database.get("shop").connection_url == made.url()
    assert Database.get(made.id).name == "shop"
    assert [d.name for d in Database.list()] == ["shop"]
    with pytest.raises(Conflict):
        Database.create("shop", ram_mib=1024)
    with pytest.raises(InvalidRequest, match="too small"):
        Database.create("tiny", size="1m", ram_mib=1024)
    with pytest.raises(InvalidRequest, match="time zone"):
        made.clone(target_time="2026-01-01T00:00:00")
    with pytest.raises(InvalidRequest, match="'yesterday' is no time"):
        made.clone(target_time="yesterday")
    with pytest.raises(OutsideArchive):
        made.clone(target_time="2000-01-01T00:00:00Z")
    made.snapshot(label="a")
    assert [s.label for s in made.snapshots()] == ["a", None]
    copy = made.clone(snapshot="a")
    assert copy.name == "shop-clone"
    assert copy.connection_url != made.connection_url
    before = made.connection_url
    assert made.reset_password() == made.connection_url != before
    assert made.set_idle(9).idle_seconds == 9
    assert made.hibernate().state is DatabaseState.HIBERNATED
    assert made.wake().state is DatabaseState.RUNNING
    assert made.grow("3g").size_bytes == 3 << 30
    made.delete_snapshot("a")
    with pytest.raises(InvalidRequest, match="there is no folder /nowhere"):
        made.dump("/nowhere/file")
    with pytest.raises(InvalidRequest, match="it is a folder"):
        made.dump("/")
    machine.fails_at = "pg_dump"
    with pytest.raises(GuestFailed):
        made.dump(tmp_path / "file")
    assert not list(tmp_path.iterdir())
    copy.delete()
    with pytest.raises(NotFound):
        copy.refresh()


def test_the_async_sdk() -> None:
    async def main() -> None:
        made = await AsyncDatabase.create("shop", ram_mib=1024)
        assert [d.name for d in await AsyncDatabase.list()] == ["shop"]
        assert (await made.refresh()).state is DatabaseState.RUNNING
        await made.delete()

    asyncio.run(main())


def test_the_command_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    url = cli("db", "create", "shop", "--ram-mib", "1024").strip()
    assert url.startswith("postgresql://postgres:")
    assert "password: " in cli.stderr
    assert cli("db", "url", "shop").strip() == url
    (listed,) = cli.json("db", "ls")
    assert listed["name"] == "shop"
    assert "running" in cli("db", "ls")
    assert "recoverable_from" in cli("db", "show", "shop")
    password = url.partition("@")[0].rpartition(":")[2]
    assert password not in cli("db", "show", "shop") + cli("db", "ls")
    assert cli("db", "snapshot", "shop", "--label", "a").startswith("vsnap_")
    assert "a" in cli("db", "snapshots", "shop")
    assert cli("db", "clone", "shop", "copy", "--snapshot", "a").startswith("postgresql://")
    early = ("db", "clone", "shop", "past", "--target-time", "2000-01-01T00:00:00Z")
    assert "it can be had from" in cli.fails(*early, code=114)
    assert cli("db", "idle", "shop", "15m") == "shop  900\n"
    assert cli("db", "grow", "shop", "2g") == "shop  2.0 GiB\n"
    assert cli("db", "hibernate", "shop") == "shop  hibernated\n"
    assert cli("db", "wake", "shop") == "shop  running\n"
    assert cli("db", "reset-password", "shop").strip() != url
    assert cli("db", "upgrade", "shop", "--no-build") == "shop  17.6\n"
    cli.fails("db", "attach", "shop", "sbx_00000000000000000001", code=66)
    assert "did you mean 'copy'?" in cli.fails("db", "rm", "copyy", code=66)
    cli("db", "rm", "copy")

    psql = tmp_path / "psql"
    psql.write_text('#!/bin/sh\necho "$PGUSER@$PGHOST $@"\n')
    psql.chmod(0o755)
    called: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *args: called.append(args))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    cli("db", "psql", "shop", "--", "-c", "SELECT 1")
    ((program, argv, environment),) = called
    assert (program, argv[1:]) == (str(psql), ["-c", "SELECT 1"])
    assert environment["PGHOST"] == "127.0.0.1"
    assert environment["PGPASSWORD"] not in " ".join(argv)
    assert cli("db", "rm", "shop") == "shop\n"
    assert "make it: torpor db create shop" in cli.fails("db", "url", "shop", code=66)


@pytest.mark.parametrize("command", ["create new", "clone shop new"])
def test_ctrl_c_says_that_the_daemon_goes_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Database, "create", interrupted)
    monkeypatch.setattr(Database, "clone", interrupted)
    cli("db", *command.split(), code=130)
    assert "`torpor db rm new` takes it away" in cli.stderr
