"""The search for databases: by content, bounded, never led astray."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from torpor_guest import find_sqlite
from torpor_guest.find_sqlite import find
from torpor_guest.keeping import KeeperFailed

CONTENT = b"SQLite format 3\0" + bytes(1008)


def names(*roots: Path, exclude: tuple[str, ...] = (), within_s: float = 20) -> list[str]:
    """What is found below them."""
    found = find([], [os.fsencode(r) for r in roots], list(exclude), time.monotonic() + within_s)
    return [Path(each.shown).name for each in found]


def test_by_header_not_by_name(tmp_path: Path) -> None:
    (tmp_path / "looks.db").write_bytes(b"no" * 512)
    (tmp_path / "history").write_bytes(CONTENT)
    (tmp_path / "short.db").write_bytes(CONTENT[:100])
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/x").write_bytes(CONTENT)
    assert names(tmp_path) == ["x", "history"]


def test_what_is_not_followed_waited_for_or_entered(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_bytes(CONTENT)
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "pipe.db")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket.db"))
        for name in (".git", "node_modules", "__pycache__"):
            (root / name).mkdir()
            (root / name / "x.db").write_bytes(CONTENT)
        (root / "one").write_bytes(CONTENT)
        os.link(root / "one", root / "same")
        assert len(names(root, root)) == 1
    assert names(root, exclude=(f"{root}/*",)) == []
    assert names(Path("/proc/self"), within_s=5) == []


def test_thousands_of_files(tmp_path: Path) -> None:
    for folder in range(20):
        (tmp_path / str(folder)).mkdir()
        for number in range(200):
            (tmp_path / str(folder) / str(number)).write_bytes(b"" if number else CONTENT)
    begun = time.monotonic()
    assert len(names(tmp_path)) == 20
    assert time.monotonic() - begun < 10


def test_the_walk_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(600):
        (tmp_path / str(number)).touch()
    with pytest.raises(KeeperFailed, match="not at its end"):
        names(tmp_path, within_s=0)
    monkeypatch.setattr(find_sqlite, "ENTRIES_MOST", 500)
    with pytest.raises(KeeperFailed, match="more than 500 files"):
        names(tmp_path)


def test_a_deep_tree(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(300):
            os.mkdir("d" * 10, dir_fd=here)
            below = os.open("d" * 10, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
    finally:
        os.close(here)
    (tmp_path / "z.db").write_bytes(CONTENT)
    assert names(tmp_path) == ["z.db"]


def test_patterns(tmp_path: Path) -> None:
    for name in ("a/x.db", "b/x.db", "b/text.db", "c/other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"no" * 512 if "text" in name else CONTENT)
    deadline = time.monotonic() + 20
    patterns = [os.fsencode(f"{tmp_path}/{p}") for p in ("*/*.db", "none/*.db", "[c]")]
    found = [each.shown for each in find(patterns, [], [], deadline)]
    assert found == [f"{tmp_path}/{name}" for name in ("a/x.db", "b/x.db", "c/other")]
