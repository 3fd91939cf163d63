"""The command line on snapshots: output for people and programs, exit codes."""

from __future__ import annotations

import json
import re

import pytest

from tests.contract.api.test_cli import Cli
from tests.fakes.serving import ServerThread
from torpor import Sandbox, Snapshot
from torpor.errors import GuestFailed, HostNotReady
from torpor.model import SandboxId

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def sandbox() -> str:
    return Sandbox.create().id


@pytest.fixture
def snapshot(sandbox: str) -> str:
    return Sandbox.snapshot(sandbox, label="first one").id


def test_taking_one(cli: Cli, sandbox: str) -> None:
    taken = cli("snapshot", sandbox, "--label", "a b").strip()
    assert Snapshot.get(taken).label == "a b"
    found = cli.json("snapshot", "create", sandbox[4:12], "--consistency", "crash", "-m", "k=v")
    assert (found["consistency"], found["metadata"]) == ("crash", {"k": "v"})
    assert cli.json("snapshot", "--label", "first", sandbox)["label"] == "first"
    cli.fails("snapshot", sandbox, "--label", "a b", code=73)
    cli.fails("snapshot", sandbox, "--consistency", "perfect", code=64)
    cli.fails("snapshot", "sbx_00000000000000000000", code=66)
    cli.fails("snapshot", "nosuch", code=66)
    assert "Usage:" in cli("snapshot", "--help")
    assert "verify" in cli("snapshot", "-h")
    assert "outside" in re.sub(r"\s+", " ", cli("rollback", "--help"))
    assert "outside" in re.sub(r"\s+", " ", cli("restore", "--help"))
    assert "outside" in re.sub(r"\s+", " ", cli("fork", "--help"))


def test_one_without_an_inventory_says_so(cli: Cli, sandbox: str, server: ServerThread) -> None:
    cli("snapshot", sandbox)
    assert cli.stderr == ""
    guest = server.engine.sandboxes[SandboxId(sandbox)].guest
    guest.inventory_error = HostNotReady("its agent is too \x1b[1mold")
    cli("snapshot", sandbox)
    assert cli.stderr == "note: inventory not taken: its agent is too \\x1b[1mold\n"


def test_listing(cli: Cli, sandbox: str, snapshot: str) -> None:
    other = Sandbox.create().snapshot().id
    lines = cli("snapshots").splitlines()
    assert re.fullmatch(r"ID +LABEL +SANDBOX +WHY +CONSISTENCY +SIZE +PAUSE +AGE", lines[0].strip())
    assert re.match(
        rf"{snapshot} +first one +{sandbox} +snapshot +filesystem +1\.0 MiB +12 ms +\d+ s", lines[2]
    )
    assert cli("snapshots", "-q") == f"{other}\n{snapshot}\n"
    assert [s["id"] for s in cli.json("snapshots", sandbox[4:12])] == [snapshot]
    assert [s["id"] for s in cli.json("snapshot", "ls", sandbox)] == [snapshot]
    cli("rm", sandbox)
    assert [s["id"] for s in cli.json("snapshots", sandbox)] == [snapshot]
    assert cli("snapshots", Sandbox.create().id) == ""
    assert "takes one" in cli.stderr
    cli.fails("snapshots", "zzzz", code=66)
    cli.fails("snapshots", "sbx_", code=64)


def test_showing(cli: Cli, sandbox: str, snapshot: str) -> None:
    facts = cli("snapshot", "show", f"{sandbox}@first one")
    assert re.search(rf"^id +{snapshot}$", facts, re.MULTILINE)
    assert re.search(r"^size +1\.0 MiB$", facts, re.MULTILINE)
    assert re.search(r"^agent_memory +\S", facts, re.MULTILINE)
    assert "Watermark(" not in facts, "no names of classes"
    assert cli.json("snapshot", "show", snapshot[:10])["id"] == snapshot
    assert cli.json("snapshot", "show", snapshot[5:14])["id"] == snapshot
    Sandbox.snapshot(sandbox)
    assert "can be any of" in cli.fails("snapshot", "show", "snap_", code=64)
    for nothing in (f"{sandbox}@other", "@first one", "zzzz", "", "snap_00000000000000000000"):
        cli.fails("snapshot", "show", nothing, code=66)


def test_a_name_wins_over_the_beginning_of_a_snapshots_id(cli: Cli, snapshot: str) -> None:
    named = cli("create", "--name", snapshot[5:10]).strip()
    (fork,) = cli.json("fork", snapshot[5:10])
    assert named in json.dumps(fork), fork


def test_verifying(cli: Cli, snapshot: str, server: ServerThread) -> None:
    assert cli("snapshot", "verify", snapshot) == f"{snapshot}  ok\n"
    assert cli.json("snapshot", "verify", snapshot)["ok"] is True
    layer = server.engine.points[snapshot].layers[0]  # type: ignore[index]
    server.engine.damaged.add(layer)
    assert re.search(
        rf"^{layer} +its content .* {snapshot}$",
        cli("snapshot", "verify", snapshot, code=87),
        re.MULTILINE,
    )
    assert cli.json("snapshot", "verify", snapshot, code=87)["damage"][0]["layer"] == layer


def test_removing(cli: Cli, sandbox: str, snapshot: str) -> None:
    second = Sandbox.snapshot(sandbox).id
    assert cli("snapshot", "rm", snapshot) == f"{snapshot}  0 B freed\n"
    assert cli.json("snapshot", "rm", second) == {"deleted": [second], "freed_bytes": 0}
    asleep = Sandbox.hibernate(sandbox).id
    assert "torpor wake" in cli.fails("snapshot", "rm", asleep, code=73)
    cli.fails("snapshot", "rm", snapshot, code=66)


def test_restoring(cli: Cli, sandbox: str, snapshot: str, server: ServerThread) -> None:
    made = cli(
        "restore", f"{sandbox[:9]}@first one", "--ttl", "60", "-m", "a=b", "--idle", "9"
    ).strip()
    info = Sandbox.get(made).info
    assert (info.ttl_seconds, info.metadata, info.idle_seconds) == (60, {"a": "b"}, 9)
    assert cli.json("restore", snapshot, "--network", "none")["network"] == "none"
    cli.fails("restore", snapshot, "--network", "bridge", code=64)
    cli.fails("restore", "snap_00000000000000000000", code=66)
    server.engine.foreign.add(snapshot)  # type: ignore[arg-type]
    assert "cold" in cli.fails("restore", snapshot, code=89)
    made = cli("restore", snapshot, "--allow-cold").strip()
    assert cli.stderr == f"note: {made} was started cold, from the disk alone\n"


def test_rolling_back(cli: Cli, sandbox: str, snapshot: str) -> None:
    assert cli("rollback", sandbox[:12], "first", code=66) == ""
    assert cli("rollback", sandbox, snapshot[:12]) == f"{sandbox}\n"
    assert cli.json("rollback", sandbox, snapshot)["generation"] == 3
    assert cli.json("rollback", sandbox, snapshot, "--cold")["boot_mode"] == "cold"
    cli("rm", sandbox)
    cli.fails("rollback", sandbox, snapshot, code=65)


def test_forking(cli: Cli, sandbox: str, snapshot: str, server: ServerThread) -> None:
    assert len(cli("fork", sandbox, "-n", "2", "-m", "a=b").split()) == 2
    assert len(cli("fork", sandbox[4:12]).split()) == 1
    for source in (snapshot, snapshot[5:14], snapshot[:12], f"{sandbox}@first one"):
        made = cli.json("fork", source)
        assert made[0]["metadata"]["fork_tree_id"] == snapshot
    server.engine.room = 1
    assert len(cli("fork", sandbox, "-n", "2", code=69).split()) == 1
    assert cli.stderr.startswith("error: 512 MiB")
    found = cli.json("fork", sandbox, "-n", "2", code=69)
    assert [f["error"]["code"] for f in found] == ["host.insufficient_resources"] * 2
    cli.fails("fork", sandbox, "-n", "0", code=64)
    cli.fails("fork", "zzzz", code=66)


def test_a_source_that_can_be_both(cli: Cli, server: ServerThread) -> None:
    sandbox = Sandbox.create()
    taken = sandbox.snapshot()
    shared = f"{'7' * 16}{taken.id[-4:]}"
    engine = server.engine
    engine.points[f"snap_{shared}"] = engine.points.pop(taken.id)  # type: ignore[index]
    engine.sandboxes[f"sbx_{shared}"] = engine.sandboxes.pop(sandbox.id)  # type: ignore[index]
    from dataclasses import replace

    point = engine.points[f"snap_{shared}"]  # type: ignore[index]
    point.info = replace(point.info, id=f"snap_{shared}")
    kept = engine.sandboxes[f"sbx_{shared}"]  # type: ignore[index]
    kept.info = replace(kept.info, id=f"sbx_{shared}")
    assert "sbx_ or snap_" in cli.fails("fork", "7777", code=64)


def test_sleeping_and_waking(
    cli: Cli, sandbox: str, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Sandbox.create().id
    lines = cli("hibernate", sandbox, other).splitlines()
    assert re.fullmatch(rf"{sandbox}  asleep at snap_\w+", lines[0])
    assert re.match(rf"{sandbox} +hibernated", cli("ls").splitlines()[2])
    assert cli("wake", sandbox) == f"{sandbox}  running in 5 ms\n"
    assert cli.json("wake", other)[0]["result"]["state"] == "running"
    hibernate = server.engine.hibernate

    async def stubborn(sandbox_id: str, **more: object) -> object:
        if sandbox_id == sandbox:
            raise GuestFailed("it will not sleep")
        return await hibernate(sandbox_id, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(server.engine, "hibernate", stubborn)
    assert cli("hibernate", sandbox, other, code=82).startswith(f"{other}  asleep")
    assert cli.stderr == "error: it will not sleep\n"
    found = cli.json("hibernate", sandbox, other, code=82)
    assert found[0]["error"]["code"] == "guest.failed"
    assert found[1]["result"]["reason"] == "hibernate"
    cli.fails("wake", "zzzz", code=66)


def test_idling(cli: Cli, sandbox: str) -> None:
    assert cli("idle", sandbox, "30") == "after 30 s without work\n"
    assert cli.json("idle", sandbox, "never")["idle_seconds"] is None
    assert cli("idle", sandbox, "never") == "never\n"
    cli.fails("idle", sandbox, "soon", code=64)
    cli.fails("idle", sandbox, "0", code=64)
    assert cli.json("create", "--idle", "5")["idle_seconds"] == 5
