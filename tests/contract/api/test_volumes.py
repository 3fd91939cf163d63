"""Volumes over REST, with the SDK and on the command line, with the fake engine."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.contract.api.conftest import Rest
from tests.contract.api.test_cli import Cli
from tests.fakes.serving import ServerThread
from torpor import AsyncSandbox, AsyncVolume, Sandbox, Volume
from torpor.errors import Busy, Conflict, InvalidRequest, NotFound, VolumeHeld
from torpor.server.wire_volumes import VolumeListWire, VolumeSnapshotWire, VolumeWire

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture
def cli() -> Cli:
    return Cli()


def test_rest(rest: Rest) -> None:
    made = rest.ok("POST", "/v1/volumes", json={"name": "data"}, status=201)
    VolumeWire.model_validate(made)
    assert (made["size_bytes"], made["size_mb"], made["holders"]) == (1 << 30, 1024, [])
    small = rest.ok("POST", "/v1/volumes", json={"name": "small", "size_mb": 128}, status=201)
    assert small["size_bytes"] == 128 << 20
    both = {"name": "x", "size_mb": 128, "size_gib": 1}
    rest.fails("POST", "/v1/volumes", 400, "request.invalid", json=both)
    rest.fails("POST", "/v1/volumes", 409, "object.conflict", json={"name": "data"})
    found = rest.ok("GET", "/v1/volumes")
    VolumeListWire.model_validate(found)
    assert [v["name"] for v in found["volumes"]] == ["data", "small"]
    assert rest.ok("GET", f"/v1/volumes/{made['id']}")["name"] == "data"
    rest.fails("GET", "/v1/volumes/none", 404, "object.not_found")
    assert rest.ok("POST", "/v1/volumes/data/grow", json={"size_gib": 2})["size_bytes"] == 2 << 30
    point = rest.ok("POST", "/v1/volumes/data/snapshots", json={"label": "a"}, status=201)
    VolumeSnapshotWire.model_validate(point)
    assert rest.ok("GET", "/v1/volumes/data/snapshots")["snapshots"] == [point]
    body = {"name": "copy", "snapshot": "a"}
    copy = rest.ok("POST", "/v1/volumes/data/clone", json=body, status=201)
    assert copy["parent"] == made["id"]
    assert rest.ok("POST", "/v1/volumes/copy/keep")["bound_to"] is None
    gone = rest.ok("DELETE", "/v1/volumes/data/snapshots/a")
    assert gone == {"deleted": "a", "freed_bytes": 512}
    sandbox = rest.create(volumes={"/data": "data", "/copy": {"volume": "copy", "read_only": True}})
    has = rest.ok("GET", f"/v1/sandboxes/{sandbox}/volumes")["volumes"]
    assert {v["name"]: v["holders"][0]["read_only"] for v in has} == {"data": False, "copy": True}
    path = f"/v1/sandboxes/{rest.create()}/volumes"
    rest.fails("POST", path, 409, "volume.held", json={"volume": "data", "path": "/d"})
    rest.fails("DELETE", "/v1/volumes/data", 409, "volume.held")
    path = f"/v1/sandboxes/{sandbox}/volumes"
    rest.ok("DELETE", path, params={"path": "/data"}, status=204)
    rest.fails("DELETE", path, 404, "object.not_found", params={"path": "/data"})
    rest.fails("DELETE", path, 400, "request.invalid")
    freed = rest.ok("DELETE", "/v1/volumes/data", params={"snapshots": True})
    assert freed["deleted"] == "data"


def test_sdk() -> None:
    data = Volume.create("data", size_gib=1)
    assert (data.name, data.info.size_bytes) == ("data", 1 << 30)
    assert repr(data) == "<Volume data>"
    with pytest.raises(Conflict):
        Volume.create("data")
    with pytest.raises(InvalidRequest):
        Volume.create("tiny", 0.01)
    assert [v.name for v in Volume.list()] == ["data"]
    assert Volume.get(data.id).name == "data"
    with pytest.raises(NotFound):
        Volume.get("none")
    sandbox = Sandbox.create(volumes={"/data": "data"})
    with pytest.raises(VolumeHeld):
        Sandbox.create(volumes={"/data": {"volume": "data", "read_only": True}})
    assert [v.name for v in sandbox.volumes()] == ["data"]
    (holder,) = data.refresh().holders
    assert (holder.sandbox_id, holder.path) == (sandbox.id, "/data")
    with pytest.raises(VolumeHeld):
        data.delete()
    sandbox.detach_volume("/data")
    assert sandbox.attach_volume("data", "/mnt", read_only=True).read_only
    Sandbox.detach_volume(sandbox.id, "data")
    assert data.grow(3).size_bytes == 3 << 30
    point = data.snapshot(label="x")
    assert [s.id for s in data.snapshots()] == [point.id]
    copy = data.clone("copy", snapshot="x")
    assert copy.info.parent == data.id
    assert copy.keep().bound_to is None
    assert data.delete_snapshot("x") == 512
    assert data.delete(snapshots=True) > 0
    snapshot = sandbox.snapshot(volumes="detach")
    sandbox.rollback(snapshot.id, volumes="keep-current")


def test_what_is_said_of_volumes_reaches_the_engine(server: ServerThread) -> None:
    sandbox = Sandbox.create()
    snapshot = sandbox.snapshot(volumes="keep-current")
    assert (dict(snapshot.info.volumes), snapshot.info.machine) == ({}, 1)
    sandbox.rollback(snapshot.id, volumes="detach")
    Sandbox.restore(snapshot.id, volumes="detach")
    sandbox.fork(count=1, volumes="keep-current")
    snapshot.restore(volumes="detach")
    assert server.engine.volumes_modes == [
        "keep-current",
        "detach",
        "detach",
        "keep-current",
        "detach",
    ]


def test_busy(server: ServerThread) -> None:
    Volume.create("data")
    sandbox = Sandbox.create(volumes={"/data": "data"})
    server.engine.volumes.busy.add("/data")
    with pytest.raises(Busy) as caught:
        sandbox.detach_volume("/data")
    assert caught.value.facts["holders"] == "17 sh"


def test_async_sdk() -> None:
    async def main() -> None:
        data = await AsyncVolume.create("data")
        sandbox = await AsyncSandbox.create(volumes={"/data": "data"})
        assert [v.name for v in await sandbox.volumes()] == ["data"]
        await sandbox.detach_volume("/data")
        await sandbox.attach_volume("data", "/data")
        assert (await data.refresh()).holders[0].sandbox_id == sandbox.id
        await sandbox.delete()

    asyncio.run(main())


def test_copying_through_who_has_it(tmp_path: Path) -> None:
    data = Volume.create("data")
    sandbox = Sandbox.create(volumes={"/data": "data"})
    (tmp_path / "file").write_text("hello")
    sandbox.filesystem.mkdir("/data")
    data.copy_in(tmp_path / "file", "/")
    assert sandbox.filesystem.read_text("/data/file") == "hello"
    data.copy_out("/file", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "hello"
    for wrong in ("file", "/../file"):
        with pytest.raises(InvalidRequest):
            data.copy_out(wrong, tmp_path)
    with pytest.raises(NotFound, match="there is no /none in volume data"):
        data.copy_out("/none", tmp_path)
    assert [s.id for s in Sandbox.list()] == [sandbox.id], "no other was tried"


def test_copying_through_a_sandbox_that_is_made_for_it(
    tmp_path: Path, server: ServerThread
) -> None:
    data = Volume.create("data")
    (tmp_path / "file").write_text("hello")
    data.copy_in(tmp_path / "file", "/file")
    assert not list(Sandbox.list()), "it is deleted again"
    assert data.refresh().holders == ()
    with pytest.raises(NotFound):
        data.copy_out("/none", tmp_path)
    assert not list(Sandbox.list())
    made = len(server.engine.sandboxes)
    with pytest.raises(NotFound, match="no such file"):
        data.copy_in(tmp_path / "none", "/file")
    assert len(server.engine.sandboxes) == made, "no machine is made for nothing"


def test_command_line(cli: Cli, tmp_path: Path) -> None:
    cli("volume", "ls")
    assert "no volumes" in cli.stderr
    assert cli("volume", "create", "data", "--size-gib", "2") == "data\n"
    assert cli.json("volume", "create", "more")["size_bytes"] == 1 << 30
    cli.fails("volume", "create", "data", code=73)
    assert "2.0 GiB" in cli("volume", "ls")
    assert cli("volume", "ls", "-q") == "data\nmore\n"
    assert [v["name"] for v in cli.json("volume", "ls")] == ["data", "more"]
    sandbox = cli("create", "base", "-v", "data:/data", "-v", "more:/more:ro").strip()
    assert f"{sandbox}:/more read-only" in cli("volume", "ls")
    shown = cli("volume", "get", "data")
    assert f"{sandbox}:/data" in shown
    assert re.search(r"^created_at +[-0-9]+ [:0-9]+ UTC, \d+ \w+ ago$", shown, re.MULTILINE)
    assert re.search(r"^used_at +(-|[-0-9]+ [:0-9]+ UTC, \d+ \w+ ago)$", shown, re.MULTILINE)
    assert cli.json("volume", "get", "data")["holders"][0]["path"] == "/data"
    cli.fails("create", "base", "-v", "data:/data", code=103)
    for wrong in ("data", "data:", "data:data", "data:/d:xx", ":/d"):
        cli.fails("create", "base", "-v", wrong, code=64)
    cli.fails("volume", "rm", "data", code=103)
    assert "did you mean 'data'?" in cli.fails("volume", "rm", "dta", code=66)
    assert "torpor volume create else" in cli.fails("volume", "rm", "else", code=66)
    assert cli("volume", "detach", sandbox[:12], "/data") == "/data\n"
    cli.fails("volume", "detach", sandbox, "/data", code=66)
    assert "at /d of" in cli("volume", "attach", "data", sandbox, "/d", "--repair")
    cli("volume", "detach", "data", sandbox)
    assert cli.json("volume", "attach", sandbox, "data", "/d", "--read-only")["read_only"]
    cli("volume", "detach", sandbox, "data")
    assert "3.0 GiB" in cli("volume", "grow", "data", "3")
    point = cli("volume", "snapshot", "data", "--label", "a").strip()
    assert point in cli("volume", "snapshots", "data")
    assert cli("volume", "clone", "data", "copy", "--snapshot", "a") == "copy\n"
    assert cli("volume", "keep", "copy") == "copy\n"
    assert "freed" in cli("volume", "rm-snapshot", "data", "a")
    (tmp_path / "f").write_text("x")
    cli("volume", "cp", str(tmp_path / "f"), "data:/f")
    cli.fails("volume", "cp", "a", "b", code=64)
    cli.fails("volume", "cp", "data:/a", "copy:/b", code=64)
    assert cli.json("volume", "rm", "data", "copy", "--snapshots")["deleted"] == ["data", "copy"]
    taken = cli("snapshot", sandbox, "--volumes", "detach").strip()
    cli.fails("snapshot", sandbox, "--volumes", "some", code=64)
    cli("rollback", sandbox, taken, "--volumes", "keep-current")
    cli("restore", taken, "--volumes", "detach")
