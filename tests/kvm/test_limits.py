"""A machine moves no more in a second than the daemon's settings allow, and a copy of it as much as its own daemon's."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.kvm.conftest import host_address, new_daemon
from tests.machines import end_daemon
from torpor import Sandbox
from torpor.base.home import Home
from torpor.vmm.limits import DISK, NETWORK

Restart = Callable[[], None]
_MIB = 3
"""What is moved. A full bucket lets one pass at once; the others take a second each."""
_TAKES_S = 1.8


@pytest.fixture
def unlimited(kvm_home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Restart]:
    """Let a daemon with limits serve the home; to be called for one without, which also serves afterwards."""

    def limits_off() -> None:
        monkeypatch.delenv(DISK, raising=False)
        monkeypatch.delenv(NETWORK, raising=False)
        end_daemon(kvm_home)
        new_daemon(kvm_home)

    end_daemon(kvm_home)
    monkeypatch.setenv(DISK, "1")
    if os.environ["TORPOR_DRIVER"] == "firecracker":
        monkeypatch.setenv(NETWORK, "1")
    new_daemon(kvm_home)
    yield limits_off
    if DISK in os.environ:
        limits_off()


def test_what_is_too_fast_is_held_back(template: str, driver: str, unlimited: Restart) -> None:
    with Sandbox.create(template=template) as slow:
        assert _write_s(slow) > _TAKES_S
        if driver == "firecracker":
            assert _send_s(slow) > _TAKES_S
        snapshot = slow.snapshot()
        unlimited()
        assert _write_s(slow) > _TAKES_S, "a machine keeps what it was started with"
        with Sandbox.restore(snapshot.id) as fast:
            assert any(_write_s(fast) < _TAKES_S for _ in range(3))
            if driver == "firecracker":
                assert any(_send_s(fast) < _TAKES_S for _ in range(3))


def _write_s(sandbox: Sandbox) -> float:
    """Return how many seconds it takes to write to the disk."""
    time.sleep(1)  # until its bucket is full
    begun = time.monotonic()
    write = f"dd if=/dev/zero of=/root/written bs=256k count={4 * _MIB} oflag=direct conv=notrunc"
    sandbox.exec(write, check=True)
    return time.monotonic() - begun


def _send_s(sandbox: Sandbox) -> float:
    """Return how many seconds it takes to send to the host."""
    with socket.create_server((host_address(), 0)) as server:
        server.settimeout(60)
        send = (
            "import socket; link = socket.create_connection("
            f"{server.getsockname()!r}, 30); link.sendall(bytes({_MIB << 20})); link.close()"
        )
        sending = sandbox.exec(["python3", "-c", send], background=True)
        link, _ = server.accept()
        begun, left = time.monotonic(), _MIB << 20
        with link:
            while left > 0:
                data = link.recv(1 << 20)
                assert data, "it was cut"
                left -= len(data)
        took = time.monotonic() - begun
        assert sending.wait().exit_code == 0
        return took
