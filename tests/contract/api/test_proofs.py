"""Watches, and the last good snapshot, over REST, in Python and on the command line, with looks that a test writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.contract.api.conftest import Rest
from tests.contract.api.test_cli import Cli
from tests.fakes.serving import ServerThread
from tests.unit.recovery.test_watches import ScriptedWatchLooker
from torpor import AsyncSandbox, Sandbox, Snapshot
from torpor.base.ids import new_id
from torpor.errors import LastGoodSnapshot, NotFound
from torpor.recovery.watches import desk

pytestmark = pytest.mark.usefixtures("server", "_looks")
CHECKS = {"required": {"file": {"/etc/agent.conf": {"exists": True}}}}


@pytest.fixture
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "WatchLooker", ScriptedWatchLooker)
    ScriptedWatchLooker.script[:] = ["pass"]


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox.create(metadata={"name": "hermes-1"})


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def good(server: ServerThread, sandbox: Sandbox) -> Snapshot:
    """A snapshot that is known to be good."""
    taken = sandbox.snapshot(label="monday")
    server.run(server.engine.mark_good(taken.id, "chg_1", "a change was kept"))
    return taken


def test_bad_requests(rest: Rest, sandbox: Sandbox) -> None:
    path = f"/v1/sandboxes/{sandbox.id}"
    rest.fails("GET", f"{path}/watch", 404, "object.not_found")
    rest.fails("PUT", f"{path}/watch", 400, "request.invalid", json={"checks": "x"})
    rest.fails("POST", f"{path}/watch/look", 404, "object.not_found")
    rest.fails("DELETE", f"{path}/watch", 404, "object.not_found")
    both = {"checks": json.dumps(CHECKS), "schedule": "0 4 * * *", "every_seconds": 600}
    rest.fails("PUT", f"{path}/watch", 400, "request.invalid", json=both)
    never = {"checks": json.dumps(CHECKS), "schedule": "0 4 * * 8"}
    rest.fails("PUT", f"{path}/watch", 400, "request.invalid", json=never)
    assert rest.ok("GET", "/v1/watches")["watches"] == []


def test_the_last_good_one(rest: Rest, good: Snapshot) -> None:
    assert rest.ok("GET", f"/v1/snapshots/{good.id}")["good"]["found_by"] == "chg_1"
    found = Snapshot.get(good.id).info.good
    assert found is not None
    assert found.reason == "a change was kept"
    rest.fails("DELETE", f"/v1/snapshots/{good.id}", 409, "snapshot.last_good")
    with pytest.raises(LastGoodSnapshot):
        good.delete()
    good.delete(force=True)


def test_a_watch_in_python(sandbox: Sandbox, good: Snapshot) -> None:
    assert sandbox.watched() is None
    with pytest.raises(NotFound):
        Sandbox.handle(new_id("sbx")).watched()
    info = sandbox.watch(CHECKS, every_seconds=3600)
    assert (info.every_seconds, info.outcome) == (3600, None)
    ScriptedWatchLooker.script[:] = ["fail"]
    found = sandbox.look()
    assert (found.outcome, found.last_good) == ("fail", good.id)
    assert found.offer in (sandbox.refresh().health_note or "")
    assert sandbox.watched() == found
    sandbox.unwatch()
    assert sandbox.refresh().health_note is None
    with pytest.raises(NotFound):
        sandbox.look()


def test_in_async_python() -> None:
    async def scene() -> None:
        sandbox = await AsyncSandbox.create()
        await sandbox.watch(CHECKS, schedule="0 4 * * *")
        assert (await sandbox.look()).outcome == "pass"
        assert (await sandbox.unwatch()).schedule == "0 4 * * *"

    asyncio.run(scene())


def test_the_last_good_snapshot_on_the_command_line(cli: Cli, good: Snapshot) -> None:
    assert "a change was kept" in cli("snapshot", "show", good.id)
    said = cli.fails("snapshot", "rm", "hermes-1@monday", code=106)
    assert f"torpor snapshot rm {good.id} --force" in said
    cli("snapshot", "rm", good.id, "--force")


def test_watches_on_the_command_line(
    cli: Cli, sandbox: Sandbox, good: Snapshot, tmp_path: Path
) -> None:
    file = tmp_path / "checks.yaml"
    file.write_text(json.dumps(CHECKS))
    assert "every 6 h" in cli("watch", "hermes-1", "--checks", str(file), "--every", "6h")
    ScriptedWatchLooker.script[:] = ["fail"]
    failed = cli("watch", "look", "hermes-1", code=90)
    offer = f"torpor rollback {sandbox.id} {good.id} --cold"
    assert offer in failed
    shown = cli("watch", "show", "hermes-1")
    assert offer in shown
    assert "what it did to others" in shown
    assert offer in cli("ls")
    assert offer in cli("get", "hermes-1")
    assert cli.json("watch", "ls")[0]["outcome"] == "fail"
    assert "fail" in cli("watch", "ls")
    assert "not watched" in cli("watch", "rm", "hermes-1")
    assert "is not watched" in cli.fails("watch", "show", "hermes-1", code=66)
    assert offer not in cli("ls")
    cli.fails("watch", "hermes-1", "--checks", str(file), "--every", "often", code=64)
