"""A machine moves no more in a second than the daemon's settings allow, and what it moved is counted."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tests.kvm.conftest import host_address, new_daemon
from tests.machines import end_daemon
from torpor import Sandbox
from torpor.base.home import Home
from torpor.vmm.limits import DISK, NETWORK

Restart = Callable[[], None]
_WRITTEN, _SENT = 5 << 20, 5 << 18
"""What is moved: five times what a limit lets pass in a second. At once it lets twice that pass, at most."""
_TAKES_S = 2.8


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
        monkeypatch.setenv(NETWORK, "0.25")
    new_daemon(kvm_home)
    yield limits_off
    if DISK in os.environ:
        limits_off()


def test_what_is_too_fast_is_held_back_and_counted(
    template: str, driver: str, unlimited: Restart
) -> None:
    """Networks are limited and counted by Firecracker alone."""
    is_firecracker = driver == "firecracker"
    with Sandbox.create(template=template) as slow:
        before = slow.usage()
        slow_s = _write_s(slow)
        assert slow_s > _TAKES_S
        if is_firecracker:
            assert _send_s(slow) > _TAKES_S
        used = slow.usage()
        assert _WRITTEN <= used.disk_written_bytes - before.disk_written_bytes < 4 * _WRITTEN
        assert used.disk_writes > before.disk_writes
        assert (used.disk_failures, bool(used.disk_throttled)) == (0, is_firecracker)
        assert used.cpu_seconds > before.cpu_seconds
        assert 1 << 20 < used.memory_bytes < slow.info.ram_mib << 20
        if is_firecracker:
            sent = (used.network_sent_bytes or 0) - (before.network_sent_bytes or 0)
            assert _SENT <= sent < 2 * _SENT
            assert used.network_throttled
        else:
            assert used.network_sent_bytes is None
        snapshot = slow.snapshot()
        unlimited()
        later = slow.usage()
        assert abs(later.since - used.since) < timedelta(seconds=2)
        assert later.disk_written_bytes >= used.disk_written_bytes, "the next daemon counts on"
        assert (later.network_sent_bytes or 0) >= (used.network_sent_bytes or 0)
        assert _write_s(slow) > _TAKES_S, "a machine keeps what it was started with"
        with Sandbox.restore(snapshot.id) as fast:
            assert any(_write_s(fast) < slow_s for _ in range(3))
            if is_firecracker:
                _send_s(fast)
                found = fast.usage()
                assert (found.disk_throttled, found.network_throttled) == (0, 0)


def _write_s(sandbox: Sandbox) -> float:
    """Return how many seconds it takes to write to the disk."""
    time.sleep(1)  # until its bucket is full
    begun = time.monotonic()
    write = (
        f"dd if=/dev/zero of=/root/written bs=256k count={_WRITTEN >> 18} oflag=direct conv=notrunc"
    )
    sandbox.exec(write, check=True)
    return time.monotonic() - begun


def _send_s(sandbox: Sandbox) -> float:
    """Return how many seconds it takes to send to the host, by the machine's clock: here it is known late when that begins."""
    with socket.create_server((host_address(), 0)) as server:
        server.settimeout(60)
        send = (
            "import socket, time; link = socket.create_connection("
            f"{server.getsockname()!r}, 30); begun = time.monotonic(); link.sendall(bytes({_SENT})); "
            "link.shutdown(socket.SHUT_WR); link.recv(1); print(time.monotonic() - begun)"
        )
        sending = sandbox.exec(["python3", "-c", send], background=True)
        link, _ = server.accept()
        left = _SENT
        with link:
            while data := link.recv(1 << 20):
                left -= len(data)
        assert left == 0, "it was cut"
        ended = sending.wait()
        assert ended.exit_code == 0, ended.stderr
        return float(ended.stdout)
