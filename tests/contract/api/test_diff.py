"""What differs between two snapshots; the throw-away machines never stay."""

from __future__ import annotations

import asyncio
import signal
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.contract.api.test_cli import Cli
from tests.fakes.engine import FakeGuest
from tests.fakes.engine_files import Node
from tests.fakes.serving import ServerThread
from torpor import AsyncSnapshot, Sandbox, Snapshot, Volume
from torpor.errors import GuestFailed, InsufficientResources, NotFound, SnapshotUnusable
from torpor.model import FileInfo
from torpor.sdk import diff as diff_module
from torpor.sdk.diff import ALWAYS_SKIP, SKIP, FileChange, PackageChange, SnapshotDiff

pytestmark = pytest.mark.usefixtures("server")
ODD = "/workspace/a\udc80 b\n"


def put(guest: FakeGuest, path: str, data: bytes, **kwargs: Any) -> None:
    guest.files.nodes[path] = Node("file", data, size_bytes=len(data), **kwargs)


def touch(guest: FakeGuest, path: str) -> None:
    guest.files.nodes[path].modified_at += timedelta(seconds=1)


@pytest.fixture
def points(server: ServerThread) -> tuple[Snapshot, Snapshot]:
    """Two snapshots between which each kind of change was made once."""
    sandbox = Sandbox.create()
    guest = server.guest(sandbox.id)
    for path in ("/etc", "/proc", "/workspace/d"):
        guest.files.mkdir(path, parents=True, mode=0o755)
    for name in ("same", "touched", "grown", "rewritten", "mode", "owner", "kind", "removed"):
        put(guest, f"/workspace/{name}", b"text")
    put(guest, ODD, b"text")
    put(guest, "/workspace/unreadable", b"text", mode=0)
    put(guest, "/etc/machine-id", b"one")
    put(guest, "/proc/stat", b"one")
    put(guest, "/etc/ssh/ssh_host_rsa_key", b"one")
    guest.files.nodes["/workspace/link"] = Node("symlink", target="a")
    guest.packages = {"same": "1", "newer": "1", "removed": "1"}
    first = sandbox.snapshot(label="first")
    put(guest, "/workspace/added", b"")
    for name, data in (("grown", b"longer"), ("rewritten", b"TEXT")):
        put(guest, f"/workspace/{name}", data)
        touch(guest, f"/workspace/{name}")
    put(guest, ODD, b"TEXT")
    for path in ("/workspace/touched", "/workspace/unreadable", "/workspace/d", ODD):
        touch(guest, path)
    guest.files.nodes["/workspace/mode"].mode = 0o755
    guest.files.nodes["/workspace/owner"].user = "agent"
    guest.files.nodes["/workspace/kind"] = Node("dir", mode=0o644)
    guest.files.nodes["/workspace/link"].target = "b"
    del guest.files.nodes["/workspace/removed"]
    put(guest, "/etc/machine-id", b"other")
    put(guest, "/proc/stat", b"other")
    put(guest, "/etc/ssh/ssh_host_rsa_key", b"other")
    put(guest, "/etc/ssh/ssh_host_new_key", b"")
    guest.packages = {"same": "1", "newer": "2", "added": "1"}
    return first, sandbox.snapshot(label="second")


def alive() -> int:
    return len(list(Sandbox.list()))


def test_each_kind_of_change(points: tuple[Snapshot, Snapshot], server: ServerThread) -> None:
    first, second = points
    found = first.diff(second.id)
    assert [info.path for info in found.added] == ["/workspace/added"]
    assert [info.path for info in found.removed] == ["/workspace/removed"]
    assert {c.path: c.what for c in found.changed} == {
        ODD: ("content",),
        "/workspace/grown": ("content",),
        "/workspace/kind": ("kind",),
        "/workspace/link": ("target",),
        "/workspace/mode": ("mode",),
        "/workspace/owner": ("owner",),
        "/workspace/rewritten": ("content",),
        "/workspace/unreadable": ("content",),
    }
    changed = found.changed[1]
    assert (changed.before.size_bytes, changed.after.size_bytes) == (4, 6)
    assert found.packages == (
        PackageChange(name="added", before=None, after="1"),
        PackageChange(name="newer", before="1", after="2"),
        PackageChange(name="removed", before="1", after=None),
    )
    assert set(found.skipped) == {*SKIP, *ALWAYS_SKIP}
    assert (found.before, found.after, found.is_empty) == (first.id, second.id, False)
    assert alive() == 1
    made = [s.info for s in server.engine.sandboxes.values()][1:]
    assert [(i.network, i.ttl_seconds, i.metadata) for i in made] == [
        ("none", 3600, {"made-by": "torpor diff"})
    ] * 2


def test_what_is_skipped_can_be_chosen(points: tuple[Snapshot, Snapshot]) -> None:
    first, second = points
    found = Snapshot.diff(first.id, second.id, skip=["/workspace"])
    assert [c.path for c in found.changed] == ["/proc/stat"]
    assert (found.added, found.removed) == ((), ())


def test_volumes_are_not_walked(server: ServerThread) -> None:
    Volume.create("data", size_gib=1)
    sandbox = Sandbox.create(volumes={"/data": "data"})
    guest = server.guest(sandbox.id)
    for path in ("/data/v", "/database"):
        guest.files.mkdir(path, parents=True, mode=0o755)
    first = sandbox.snapshot()
    put(guest, "/data/v/rows", b"many")
    put(guest, "/database/notes", b"few")
    second = sandbox.snapshot()
    found = first.diff(second.id)
    assert [info.path for info in found.added] == ["/database/notes"]
    assert found.volumes == ("/data",)
    cli = Cli()
    assert cli("diff", first.id, second.id) == "A  /database/notes\n"
    assert "volumes are no part of the disk and were not compared: /data" in cli.stderr


def test_nothing_differs(points: tuple[Snapshot, Snapshot], server: ServerThread) -> None:
    first, _ = points
    server.engine.points[first.id].guest.packages = None
    found = first.diff(first.id)
    assert found.is_empty
    assert found.packages is None


def test_many_files_are_hashed_in_parts(
    points: tuple[Snapshot, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff_module, "_HASHED_AT_ONCE", 2)
    first, second = points
    assert len(first.diff(second.id).changed) == 8


def test_what_cannot_be(points: tuple[Snapshot, Snapshot], server: ServerThread) -> None:
    first, second = points
    with pytest.raises(NotFound):
        first.diff("snap_00000000000000000000")
    server.engine.room = 1
    with pytest.raises(InsufficientResources):
        first.diff(second.id)
    server.engine.room = None
    server.engine.foreign.add(first.id)
    with pytest.raises(SnapshotUnusable):
        first.diff(second.id)
    assert len(first.diff(second.id, allow_cold=True).added) == 1
    assert alive() == 1


def test_a_failure_on_the_way_leaves_nothing(
    points: tuple[Snapshot, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: object, _path: str) -> object:
        raise GuestFailed("the disk cannot be read")

    monkeypatch.setattr(FakeGuest, "list_dir", broken)
    with pytest.raises(GuestFailed):
        points[0].diff(points[1].id)
    assert alive() == 1


def test_ctrl_c_leaves_nothing(
    points: tuple[Snapshot, Snapshot], server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = server.engine.restore
    main = threading.main_thread().ident
    assert main is not None
    interrupts = [main]

    async def slow(*args: Any, **kwargs: Any) -> Any:
        if interrupts:
            signal.pthread_kill(interrupts.pop(), signal.SIGINT)
        await asyncio.sleep(0.3)
        return await restore(*args, **kwargs)

    monkeypatch.setattr(server.engine, "restore", slow)
    with pytest.raises(KeyboardInterrupt):
        points[0].diff(points[1].id)
    assert alive() == 1
    assert len(server.engine.sandboxes) == 3


def test_on_the_command_line(points: tuple[Snapshot, Snapshot], server: ServerThread) -> None:
    cli = Cli()
    first, second = points
    for point in server.engine.points.values():
        del point.guest.files.nodes[ODD]  # this runner's stdout takes no raw bytes
    lines = cli("diff", first.id[:12], second.id).splitlines()
    assert lines == [
        "A  /workspace/added",
        "C  /workspace/grown  (content)",
        "C  /workspace/kind  (kind)",
        "C  /workspace/link  (target)",
        "C  /workspace/mode  (mode)",
        "C  /workspace/owner  (owner)",
        "R  /workspace/removed",
        "C  /workspace/rewritten  (content)",
        "C  /workspace/unreadable  (content)",
        "P  added  not installed -> 1",
        "P  newer  1 -> 2",
        "P  removed  1 -> not installed",
    ]
    assert "both copies are deleted again" in cli.stderr
    assert "C  /proc/stat" in cli("diff", first.id, second.id, "--all", "--skip", "/workspace")
    found = cli.json("diff", f"{first.sandbox_id}@first", f"{first.sandbox_id}@second")
    assert found["added"][0]["path"] == "/workspace/added"
    assert found["packages"][1] == {"name": "newer", "before": "1", "after": "2"}
    cli("diff", first.id, first.id)
    assert "nothing that was looked at differs" in cli.stderr
    cli.fails("diff", first.id, second.id, "--skip", "x", code=64)
    cli.fails("diff", first.id, "zzzz", code=66)
    server.engine.points[first.id].guest.packages = None
    cli("diff", first.id, second.id)
    assert "dpkg-query" in cli.stderr
    assert "outside" in cli("rollback", "--help")
    assert alive() == 1


def test_asynchronously(points: tuple[Snapshot, Snapshot]) -> None:
    first, second = points

    async def work() -> SnapshotDiff:
        return await AsyncSnapshot.diff(first.id, second.id)

    found = asyncio.run(work())
    assert isinstance(found.changed[0], FileChange)
    assert isinstance(found.added[0], FileInfo)
    assert replace(found, packages=None).packages is None
