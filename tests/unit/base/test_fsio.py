from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

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
