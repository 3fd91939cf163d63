from __future__ import annotations

import errno
import gc
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torpor.base import fsio
from torpor.errors import Busy, DataDamaged, NotFound


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary())
def test_write_atomic_replaces_whole_content(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    fsio.write_atomic(path, data, mode=0o640)
    assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_write_atomic_failure_keeps_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def boom(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, fails, boom)
    with pytest.raises(OSError, match="No space"):
        fsio.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_json_that_is_missing_damaged_or_too_large(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(NotFound):
        fsio.read_json(path)
    path.write_bytes(b"{")
    with pytest.raises(DataDamaged, match="is not JSON"):
        fsio.read_json(path)
    path.write_bytes(b'"' + b"x" * 100 + b'"')
    with pytest.raises(DataDamaged, match="over 50 bytes"):
        fsio.read_json(path, limit_bytes=50)
    fsio.write_json(path, {"b": 1, "a": [2]})
    assert fsio.read_json(path) == {"a": [2], "b": 1}


def test_publish_dir_refuses_an_existing_target(tmp_path: Path) -> None:
    source, target = tmp_path / "new", tmp_path / "there"
    (source / "sub").mkdir(parents=True)
    (source / "sub/file").write_text("1")
    fsio.publish_dir(source, target)
    assert (target / "sub/file").read_text() == "1"
    source.mkdir()
    (source / "file").write_text("2")
    with pytest.raises(FileExistsError):
        fsio.publish_dir(source, target)
    assert (target / "sub/file").read_text() == "1"
    assert (source / "file").read_text() == "2"


def test_remove_tree_also_finishes_an_interrupted_removal(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for _ in range(2):
        (tree / "a").mkdir(parents=True)
        (tree / "a/file").write_text("x")
        doomed = tmp_path / ".tree.doomed"  # as a removal that was killed leaves it
        doomed.mkdir(exist_ok=True)
        (doomed / "rest").write_text("x")
        fsio.remove_tree(tree)
        assert list(tmp_path.iterdir()) == []
    fsio.remove_tree(tree)


def _deep(top: Path, levels: int) -> None:
    """Make folders in each other below `top`; the path of the last is far longer than a path may be."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("folder", dir_fd=fd)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        below = os.open("folder", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


@pytest.mark.parametrize("remove", [fsio.remove_all, fsio.remove_tree])
def test_a_tree_is_removed_however_deep_and_wide_it_is(
    tmp_path: Path, remove: Callable[[Path], None]
) -> None:
    tree, kept = tmp_path / "tree", tmp_path / "kept"
    tree.mkdir()
    kept.mkdir()
    (kept / "file").write_text("kept")
    for number in range(100):
        (tree / f"{number}/one/two").mkdir(parents=True)
        (tree / f"{number}/one/link").symlink_to(kept)
    os.mkfifo(tree / "0/one/two/pipe")
    (tree / "0/one/two/hard").hardlink_to(kept / "file")
    _deep(tree / "50/one/two", 1500)
    gc.collect()  # what others left open is not to be closed meanwhile
    before = len(list(Path("/proc/self/fd").iterdir()))
    try:
        remove(tree)
    except BaseException:  # pytest's own cleanup cannot remove it either
        subprocess.run(["rm", "-rf", *tmp_path.glob("*tree*")], check=True)
        raise
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").read_text() == "kept"
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_what_cannot_be_removed_is_told_and_all_else_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, kept = tmp_path / "tree", tmp_path / "kept"
    kept.mkdir()
    (tree / "one/two").mkdir(parents=True)
    for name in ("other", "one/stays", "one/two/other"):
        (tree / name).touch()
    real = os.unlink

    def unlink(name: str, **how: Any) -> None:
        if name == "stays":
            raise PermissionError(1, "Operation not permitted", name)
        real(name, **how)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(PermissionError):
        fsio.remove_all(tree)
    assert sorted(str(p.relative_to(tree)) for p in tree.rglob("*")) == ["one", "one/stays"]
    monkeypatch.undo()
    (tmp_path / "link").symlink_to(kept)
    for no_folder in ("link", "tree/one/stays"):
        with pytest.raises(OSError, match="Not a directory"):
            fsio.remove_all(tmp_path / no_folder)
    with pytest.raises(FileNotFoundError):
        fsio.remove_all(tmp_path / "none")


def test_a_folder_that_is_moved_meanwhile_leads_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    (tree / "one/two").mkdir(parents=True)
    (elsewhere / "two").mkdir(parents=True)
    real = os.listdir

    def moved(folder: int) -> list[str]:
        names = real(folder)
        if not names and (tree / "one/two").exists():
            (tree / "one/two").rename(elsewhere / "moved")
        return names

    monkeypatch.setattr(os, "listdir", moved)
    with pytest.raises(OSError, match="was moved"):
        fsio.remove_all(tree)
    assert (elsewhere / "two").exists()


def test_locked_excludes_another_process_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"""
import sys, pathlib
from torpor.base.fsio import locked
with locked(pathlib.Path({str(path)!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(Busy, match="held by another process"), fsio.locked(path, wait=False):
            pass
        other.kill()
        other.wait()
        with fsio.locked(path, wait=False):
            pass


def test_socket_name_reaches_a_path_longer_than_the_kernel_takes(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with fsio.socket_name(deep / "s.sock") as name:
            server.bind(name)
            server.listen(1)
            client.connect(name)
        assert (deep / "s.sock").is_socket()


def test_allocated_bytes_counts_no_holes(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
        file.write(b"x" * 8192)
    assert 4096 <= fsio.allocated_bytes(tmp_path) < 1 << 20
    assert fsio.allocated_bytes(tmp_path / "gone") == 0
    assert fsio.free_bytes(tmp_path) > 0
    assert fsio.can_reflink(tmp_path) in (True, False)
