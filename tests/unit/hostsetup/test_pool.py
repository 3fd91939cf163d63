"""A pool is made once, whole, and over nothing; what mounts it is said."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from torpor.base.proc import HostCommandFailed
from torpor.errors import Conflict, HostNotReady, InsufficientResources, InvalidRequest
from torpor.hostsetup import pool as room
from torpor.hostsetup.pool import Pool, make_pool

SIZE = 1 << 20
_MKFS = """#!/bin/sh
# says what it was called with, and begins the file as XFS does
echo "$@" >>'{log}'
for last; do :; done
printf XFSB | dd of="$last" conv=notrunc 2>/dev/null
{end}
"""


@pytest.fixture
def mkfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mkfs.xfs of the test's own; returns the file that it writes its arguments to."""
    return _tool(tmp_path, monkeypatch)


def _tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str = "exit 0") -> Path:
    log, tool = tmp_path / "log", tmp_path / "mkfs.xfs"
    tool.write_text(_MKFS.format(log=log, end=end))
    tool.chmod(0o755)
    monkeypatch.setattr(room, "find_tool", lambda _: str(tool))
    return log


def _make(file: Path, home: Path) -> Pool:
    return asyncio.run(make_pool(file, SIZE, home, smallest=SIZE))


def test_it_is_made_once_with_all_its_blocks(mkfs: Path, tmp_path: Path) -> None:
    file, home = tmp_path / "pools/pool.xfs", tmp_path / "home"
    made = _make(file, home)
    assert made.changed
    assert file.stat().st_size == SIZE
    assert file.stat().st_blocks * 512 >= SIZE
    assert "reflink=1" in mkfs.read_text()
    assert f"mount -o loop {file} {home}" in made.commands
    assert not home.exists(), "nothing is made or mounted there"
    before = file.read_bytes()
    again = asyncio.run(make_pool(file, 2 * SIZE, home, smallest=SIZE))
    assert (again.changed, again.size_bytes) == (False, SIZE)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["pool.xfs"]


def test_a_home_that_holds_something_is_left_alone(mkfs: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "torpor.db").write_text("rows")
    made = _make(tmp_path / "pool.xfs", home)
    assert not any(command.endswith(f" {home}") for command in made.commands)
    assert any(f"TORPOR_HOME={home}-xfs" in command for command in made.commands)
    assert (home / "torpor.db").read_text() == "rows"


def test_what_is_mounted_beside_a_home_is_not_mounted_again(
    mkfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "torpor.db").write_text("rows")
    beside = tmp_path / "home-xfs"
    beside.mkdir()
    monkeypatch.setattr(room, "can_reflink", lambda folder: folder == beside)
    made = _make(tmp_path / "pool.xfs", home)
    assert (made.mounted, made.mount_point, made.commands) == (True, beside, ())


def test_the_line_for_the_next_boot_is_written_once(mkfs: Path, tmp_path: Path) -> None:
    made = _make(tmp_path / "pool.xfs", tmp_path / "home")
    table = tmp_path / "fstab"
    table.write_text("# a table\n")
    (command,) = (c.replace("/etc/fstab", str(table)) for c in made.commands if "fstab" in c)
    for _ in range(2):
        subprocess.run(["sh", "-ec", command], check=True)
    assert table.read_text().splitlines() == [
        "# a table",
        f"{tmp_path}/pool.xfs {tmp_path}/home xfs loop,nofail 0 0",
    ]


def test_a_path_with_spaces_is_one_field_of_the_line_for_the_next_boot(
    mkfs: Path, tmp_path: Path
) -> None:
    made = _make(tmp_path / "my pools" / "a\\b.xfs", tmp_path / "my home")
    table = tmp_path / "fstab"
    table.write_text("")
    (command,) = (c.replace("/etc/fstab", str(table)) for c in made.commands if "fstab" in c)
    for _ in range(2):
        subprocess.run(["sh", "-ec", command], check=True)
    assert table.read_text() == (
        rf"{tmp_path}/my\040pools/a\134b.xfs {tmp_path}/my\040home xfs loop,nofail 0 0" "\n"
    )


def test_a_file_of_others_is_never_overwritten(mkfs: Path, tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("data")
    with pytest.raises(Conflict, match="not touched"):
        _make(file, tmp_path / "home")
    assert file.read_text() == "data"
    assert not mkfs.exists()


def test_a_file_that_came_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pools/pool.xfs"
    _tool(tmp_path, monkeypatch, f"echo theirs >'{file}'")
    with pytest.raises(Conflict, match="somebody else"):
        _make(file, tmp_path / "home")
    assert file.read_text() == "theirs\n"
    assert list(file.parent.iterdir()) == [file]


_KILLED = """
import asyncio, sys
from pathlib import Path
from torpor.hostsetup import pool
pool.find_tool = lambda _: sys.argv[1]
asyncio.run(pool.make_pool(Path(sys.argv[2]), 1 << 20, Path(sys.argv[3]), smallest=1 << 20))
"""


def test_what_is_killed_in_the_middle_leaves_no_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pools"
    _tool(tmp_path, monkeypatch, 'kill -9 "$PPID"')
    args = [str(tmp_path / "mkfs.xfs"), str(folder / "pool"), str(tmp_path / "home")]
    done = subprocess.run([sys.executable, "-c", _KILLED, *args], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert "reflink=1" in (tmp_path / "log").read_text(), (
        "it was killed while it had all its blocks"
    )
    assert not list(folder.iterdir())


def test_it_is_made_where_files_without_a_name_cannot_be(
    mkfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def no_nameless(path: str, flags: int, *args: int, **more: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not known here")
        return real(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", no_nameless)
    file = tmp_path / "pools/pool.xfs"
    assert _make(file, tmp_path / "home").changed
    assert (file.stat().st_size, file.stat().st_nlink) == (SIZE, 1)
    assert list(file.parent.iterdir()) == [file]


def test_too_small_or_too_large_is_refused(mkfs: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="too small"):
        asyncio.run(make_pool(tmp_path / "pool", SIZE, tmp_path / "home"))
    with pytest.raises(InsufficientResources, match="free"):
        asyncio.run(make_pool(tmp_path / "pool", 1 << 60, tmp_path / "home"))
    assert not (tmp_path / "pool").exists()


def test_a_mkfs_that_fails_or_is_missing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tool(tmp_path, monkeypatch, "exit 1")
    folder = tmp_path / "pools"
    with pytest.raises(HostCommandFailed):
        _make(folder / "pool", tmp_path / "home")
    assert not list(folder.iterdir())
    monkeypatch.setattr(room, "find_tool", lambda _: None)
    with pytest.raises(HostNotReady, match=r"mkfs\.xfs") as caught:
        _make(folder / "pool", tmp_path / "home")
    assert "xfsprogs" in str(caught.value.hint)
