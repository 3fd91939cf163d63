"""What the agent asks of the kernel: the right numbers, and nothing of it done to this machine."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from pathlib import Path

import pytest

from torpor_guest.kernel import Kernel


def request(direction: int, kind: str, number: int, size: int) -> int:
    """The number of an ioctl, as asm-generic/ioctl.h makes it."""
    return direction << 30 | size << 16 | ord(kind) << 8 | number


class Ioctls:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int | bytes]] = []
        self.refused: int | None = None

    def __call__(self, fd: int, code: int, arg: int | bytes = 0) -> int:
        if code == self.refused:
            raise PermissionError(1, "Operation not permitted")
        self.seen.append((str(Path(f"/proc/self/fd/{fd}").readlink()), code, arg))
        return 0


@pytest.fixture
def ioctls(monkeypatch: pytest.MonkeyPatch) -> Ioctls:
    found = Ioctls()
    monkeypatch.setattr(fcntl, "ioctl", found)
    return found


def test_freeze_and_thaw(ioctls: Ioctls, tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    Kernel().freeze(fd)
    Kernel().thaw(fd)
    os.close(fd)
    assert ioctls.seen == [  # linux/fs.h: _IOWR('X', 119, int), _IOWR('X', 120, int)
        (str(tmp_path), request(3, "X", 119, 4), 0),
        (str(tmp_path), request(3, "X", 120, 4), 0),
    ]


def test_reseed(ioctls: Ioctls) -> None:
    Kernel().reseed(b"e" * 64)
    assert ioctls.seen == [  # linux/random.h: _IOW('R', 3, int[2]), _IO('R', 7)
        ("/dev/urandom", request(1, "R", 3, 8), struct.pack("=ii", 512, 64) + b"e" * 64),
        ("/dev/urandom", request(0, "R", 7, 0), 0),
    ]
    for refused in [code for _, code, _ in ioctls.seen]:
        ioctls.refused = refused
        with pytest.raises(PermissionError):
            Kernel().reseed(b"e" * 64)


def test_clock_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(time, "clock_settime_ns", lambda clock, ns: calls.append((clock, ns)))
    monkeypatch.setattr(socket, "sethostname", calls.append)
    Kernel().set_clock(5)
    Kernel().set_hostname("sbx-1")
    assert calls == [(time.CLOCK_REALTIME, 5), "sbx-1"]


def test_refusals_of_the_c_library_are_errors(tmp_path: Path) -> None:
    fd = os.open("/proc", os.O_RDONLY)
    Kernel().sync(fd)  # nothing is ever dirty there
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Kernel().sync(-1)
    with pytest.raises(OSError, match=r"No such file|not permitted"):
        Kernel().bind(tmp_path / "no", tmp_path / "such file")


def test_places_below_a_root() -> None:
    assert Kernel().path("/etc/hostname") == Path("/etc/hostname")
    assert Kernel(Path("/tmp/x")).path("/etc/hostname") == Path("/tmp/x/etc/hostname")
    assert "/" in Kernel().mounts()
