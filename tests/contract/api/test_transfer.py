"""Upload and download of files and folders."""

from __future__ import annotations

import os
import socket
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from tests.fakes.serving import ServerThread
from torpor import Sandbox
from torpor.errors import GuestFailed, InvalidRequest, NotFound

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox.create()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub/empty").mkdir(parents=True)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "sub/data").write_bytes(bytes(range(256)) * 5000)
    (root / "sub/link").symlink_to("../run.sh")
    (root / os.fsdecode(b"odd\xff name\n")).write_text("odd")
    return root


def listing(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): str(path.readlink())
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode)
        if path.is_file()
        else None
        for path in root.rglob("*")
    }


def test_a_folder_goes_there_and_back(sandbox: Sandbox, tree: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    moved = sandbox.filesystem.upload(
        tree, "/workspace/t", progress=lambda done, total: seen.append((done, total))
    )
    assert (moved.files, moved.size_bytes) == (6, 1280013)
    assert seen[-1] == (1280013, 1280013)
    back = tmp_path / "back"
    moved = sandbox.filesystem.download(
        "/workspace/t", back, progress=lambda done, total: seen.append((done, total))
    )
    assert listing(back) == listing(tree)
    assert (moved.files, moved.size_bytes) == (6, 1280013)
    assert seen[-1][0] > 1280013
    sandbox.filesystem.download("/workspace/t", back)
    assert listing(back) == listing(tree)


def test_a_file_goes_there_and_back(sandbox: Sandbox, tree: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    moved = sandbox.filesystem.upload(
        tree / "sub/data", "/d", progress=lambda done, total: seen.append((done, total))
    )
    assert (moved.files, moved.size_bytes) == (1, 1280000)
    assert seen[-1] == (1280000, 1280000)
    assert sandbox.filesystem.stat("/d").mode == 0o644
    target = tmp_path / "new/dir/d"
    sandbox.filesystem.download("/d", target, progress=lambda d, t: seen.append((d, t)))
    assert target.read_bytes() == (tree / "sub/data").read_bytes()
    assert seen[-1] == (1280000, 1280000)
    sandbox.filesystem.upload(tree / "run.sh", "/run.sh")
    assert sandbox.filesystem.stat("/run.sh").mode == 0o755


def test_what_is_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="cannot read"):
        sandbox.filesystem.upload(tmp_path / "none", "/x")
    with pytest.raises(NotFound):
        sandbox.filesystem.download("/none", tmp_path / "x")
    sandbox.filesystem.write("/x", "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="cannot read"):
        sandbox.filesystem.upload(tmp_path / "file/below", "/x")
    with pytest.raises(InvalidRequest, match="cannot write"):
        sandbox.filesystem.download("/x", tmp_path / "file/below")


def test_sockets_are_left_out(sandbox: Sandbox, tmp_path: Path) -> None:
    root = tmp_path / "s"
    root.mkdir()
    (root / "file").write_text("x")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "sock"))
        assert sandbox.filesystem.upload(root, "/s").files == 1


@pytest.mark.parametrize("size_mib", [64])
def test_memory_stays_bounded(sandbox: Sandbox, tmp_path: Path, size_mib: int) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    with (folder / "file").open("wb") as file:
        file.truncate(size_mib << 20)
    tracemalloc.start()
    try:
        sandbox.filesystem.upload(folder / "file", "/f")
        sandbox.filesystem.download("/f", tmp_path / "f")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "f").stat().st_size == size_mib << 20
    assert peak < 24 << 20, f"{peak >> 20} MiB"  # the fake itself keeps up to 8


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    return found


@pytest.mark.parametrize(
    "member",
    [
        _member("/etc/evil"),
        _member("../evil"),
        _member("a/../../evil"),
        _member("link", tarfile.SYMTYPE, "/etc/passwd"),
        _member("link", tarfile.SYMTYPE, "../../etc/passwd"),
        _member("sub/link", tarfile.SYMTYPE, "../.."),
        _member("hard", tarfile.LNKTYPE, "/etc/passwd"),
        _member("hard", tarfile.LNKTYPE, "../outside"),
        _member("hard", tarfile.LNKTYPE, "missing"),
        _member("dev", tarfile.CHRTYPE),
        _member("disk", tarfile.BLKTYPE),
        _member("pipe", tarfile.FIFOTYPE),
        _member("x" * 5000),
    ],
    ids=lambda m: f"{m.name[:12]}-{m.linkname}",
)
def test_hostile_entries_are_refused(
    sandbox: Sandbox, server: ServerThread, tmp_path: Path, member: tarfile.TarInfo
) -> None:
    sandbox.filesystem.mkdir("/w")
    server.guest(sandbox.id).files.extra_tar_members = [member]
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    with pytest.raises(GuestFailed, match="refused"):
        sandbox.filesystem.download("/w", tmp_path / "in/side")
    assert outside.read_text() == "untouched"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "outside"]


def test_a_link_planted_first_is_not_followed(
    sandbox: Sandbox, server: ServerThread, tmp_path: Path
) -> None:
    sandbox.filesystem.mkdir("/w")
    target = tmp_path / "in"
    target.mkdir()
    (tmp_path / "outside").mkdir()
    (target / "planted").symlink_to(tmp_path / "outside")
    (target / "file").symlink_to(tmp_path / "outside/file")
    files = server.guest(sandbox.id).files
    files.extra_tar_members = [_member("planted/evil")]
    with pytest.raises(GuestFailed, match="not a folder"):
        sandbox.filesystem.download("/w", target)
    files.extra_tar_members = [_member("inner", tarfile.SYMTYPE, "."), _member("inner/evil")]
    with pytest.raises(GuestFailed, match="not a folder"):
        sandbox.filesystem.download("/w", target)
    files.extra_tar_members = [_member("file")]
    sandbox.filesystem.download("/w", target)
    assert not (target / "file").is_symlink()
    assert list((tmp_path / "outside").iterdir()) == []


def test_outside_links_can_be_left_out(
    sandbox: Sandbox, server: ServerThread, tmp_path: Path
) -> None:
    sandbox.filesystem.write("/w/file", "x")
    server.guest(sandbox.id).files.extra_tar_members = [
        _member("abs", tarfile.SYMTYPE, "/usr/bin/python3")
    ]
    moved = sandbox.filesystem.download("/w", tmp_path / "in", skip_outside_links=True)
    assert (moved.files, moved.skipped) == (1, ("abs",))
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["file"]


def test_a_stream_that_is_no_tar(
    sandbox: Sandbox, server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.filesystem.mkdir("/w")
    files = server.guest(sandbox.id).files
    monkeypatch.setattr(files, "pack", lambda _path: iter([b"not a tar" * 2000] * 200))
    with pytest.raises(GuestFailed, match="no proper tar"):
        sandbox.filesystem.download("/w", tmp_path / "in")


def test_set_id_bits_are_dropped(sandbox: Sandbox, server: ServerThread, tmp_path: Path) -> None:
    sandbox.filesystem.mkdir("/w")
    member = _member("root-me")
    member.mode = 0o6755
    server.guest(sandbox.id).files.extra_tar_members = [member]
    sandbox.filesystem.download("/w", tmp_path / "in")
    assert (tmp_path / "in/root-me").stat().st_mode & 0o7777 == 0o755
