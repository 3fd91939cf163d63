"""A VMM that was taken over owns its folder `vm`: what it puts there leads nobody astray."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from torpor.base import proc
from torpor.base.proc import ProcessId
from torpor.sandboxes import folder as files
from torpor.vmm import launch
from torpor.vmm.handing import take_over
from torpor.vmm.qemu.machine import agent_socket, qmp_socket


def _plant(kind: str, path: Path, secret: Path) -> None:
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "hard link":
        path.hardlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "x").write_text("x")


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "nothing"])
@pytest.mark.timeout(20)
def test_only_a_plain_file_is_taken_over_or_read(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret" * files.CONSOLE_LIMIT_BYTES)
    before = secret.stat()
    inner = tmp_path / "vm"
    inner.mkdir()
    _plant(kind, inner / "devices", secret)
    _plant(kind, inner / "console.log", secret)
    with pytest.raises(OSError, match=r".+"):
        take_over(inner / "devices", tmp_path / "devices", limit_bytes=1 << 20)
    assert not (tmp_path / "devices").exists()
    assert files.read_console(inner / "console.log", 0, 100) == (b"", 0)
    assert files.console_tail(inner / "console.log") == ""
    files.trim_logs(tmp_path, inner / "console.log")
    after = secret.stat()
    assert (after.st_size, after.st_mode, after.st_gid) == (
        before.st_size,
        before.st_mode,
        before.st_gid,
    )


def test_a_console_is_cut_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "vm").mkdir()
    path = tmp_path / "vm/console.log"
    with path.open("ab") as writer:
        writer.write(b"x" * files.CONSOLE_LIMIT_BYTES)
        files.trim_logs(tmp_path, path)
        writer.flush()
        assert path.stat().st_size == files.CONSOLE_LIMIT_BYTES, "as large as it may be"
        writer.write(b"last words")
        writer.flush()
        files.trim_logs(tmp_path, path)
        writer.write(b", and more")
    text = path.read_bytes()
    assert len(text) < files.CONSOLE_LIMIT_BYTES / 8
    assert text.endswith(b"xlast words, and more")


@pytest.mark.parametrize("mode", ["ab", "wb"])  # QEMU appends; Firecracker does not
def test_a_vmms_log_takes_little_space_and_keeps_its_end(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "vmm.log"
    with path.open(mode) as writer:
        for _ in range(2):
            writer.write(b"x" * files.CONSOLE_LIMIT_BYTES + b"\nlast words")
            writer.flush()
            files.trim_logs(tmp_path, tmp_path / "vm/console.log")
            writer.write(b", and more")
            writer.flush()
            assert path.stat().st_blocks * 512 < files.CONSOLE_LIMIT_BYTES / 8
            files.trim_logs(tmp_path, tmp_path / "vm/console.log")
            end = path.read_bytes()[-(1 << 20) :]
            assert end.endswith(b"x\nlast words, and more")
            assert b"\0" not in end


def test_a_vmms_log_is_cut_where_files_have_no_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(files, "make_hole", refused)
    path = tmp_path / "vmm.log"
    path.write_bytes(b"x" * (files.CONSOLE_LIMIT_BYTES + 1) + b"last words")
    files.trim_logs(tmp_path, tmp_path / "vm/console.log")
    assert path.stat().st_size < files.CONSOLE_LIMIT_BYTES / 8
    assert path.read_bytes().endswith(b"xlast words")


def test_a_folder_that_a_vmm_fills_is_seen(tmp_path: Path) -> None:
    inner = tmp_path / "vm"
    inner.mkdir()
    with (inner / "ram").open("wb") as file:
        file.write(b"x" * (3 << 20))
        file.truncate(1 << 40)
    (inner / "link").symlink_to("/")
    assert not files.is_overfull(tmp_path, ram_mib=512), "sparse, and links lead nowhere"
    (inner / "deep/er").mkdir(parents=True)
    with (inner / "deep/er/hidden").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 67 << 20)
    assert files.is_overfull(tmp_path, ram_mib=1)
    assert not files.is_overfull(tmp_path, ram_mib=4)
    for number in range(1001):
        (inner / "deep" / str(number)).touch()
    assert files.is_overfull(tmp_path, ram_mib=512), "many files are an attack too"
    assert not files.is_overfull(tmp_path / "gone", ram_mib=1)


def test_what_is_taken_over_is_ours_alone_and_bounded(tmp_path: Path) -> None:
    written, path = tmp_path / "written", tmp_path / "devices"
    written.write_bytes(b"state")
    with written.open("r+b") as still_open:
        take_over(written, path, limit_bytes=5)
        still_open.write(b"other")
    assert path.read_bytes() == b"state"
    assert not written.exists()
    written.write_bytes(b"longer")
    with pytest.raises(OSError, match="over 5 bytes"):
        take_over(written, path, limit_bytes=5)


def test_sockets_lie_where_the_vmm_cannot_replace_them(tmp_path: Path) -> None:
    assert tmp_path == agent_socket(tmp_path).parent == qmp_socket(tmp_path).parent


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "nothing"])
def test_a_machine_is_released_whatever_lies_there(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "vm").mkdir()
    _plant(kind, tmp_path / "vm" / "ram", secret)
    files.release_machine(tmp_path)
    assert not (tmp_path / "vm" / "ram").exists()
    assert secret.exists()


def test_a_process_is_found_by_the_folder_it_is_in_whatever_that_is_called(tmp_path: Path) -> None:
    """As one in a jail is, for which the folder is `/`."""

    async def main() -> None:
        (tmp_path / "one/vm").mkdir(parents=True)
        waits = [sys.executable, "-S", "-c", "import time; time.sleep(100)"]  # it starts no other
        with (tmp_path / "log").open("wb") as log:
            started = [
                proc.start_detached([*waits, name], log=log, cwd=place)
                for name, place in (
                    ("mark", tmp_path / "one/vm"),
                    ("other", tmp_path / "one/vm"),
                    ("mark", tmp_path / "one"),
                )
            ]
        try:
            (tmp_path / "one").rename(tmp_path / "two")
            assert launch.belonging(tmp_path / "two", b"\0mark\0") == started[:1]
            assert launch.belonging(tmp_path / "one", b"\0mark\0") == []
        finally:
            for process in started:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    asyncio.run(main())


def test_a_start_that_is_cancelled_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ProcessId] = []
    begun, go = threading.Event(), threading.Event()
    real = proc.start_detached

    def slow(argv: list[str], **how: Any) -> ProcessId:
        begun.set()
        assert go.wait(10)
        started.append(real(argv, **how))
        return started[-1]

    monkeypatch.setattr(proc, "start_detached", slow)

    async def main() -> None:
        with (tmp_path / "log").open("wb") as log:
            task = asyncio.create_task(launch.start_process(["sleep", "100"], log=log))
            await asyncio.to_thread(begun.wait, 10)
            task.cancel()
            asyncio.get_running_loop().call_later(0.1, go.set)
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert len(started) == 1
    assert not started[0].alive()
