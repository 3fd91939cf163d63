"""A machine's everyday: it is of the driver and under KVM, it runs commands, keeps files, stops and goes on."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.kvm.conftest import host_address
from tests.kvm.traces import machines
from tests.machines import clock_error_s
from torpor import Sandbox
from torpor.base.home import Home
from torpor.errors import WrongState
from torpor.model import SandboxState


def test_it_is_a_machine_of_this_driver_under_kvm(
    shared: Sandbox, driver: str, kvm_home: Home
) -> None:
    (pid,) = machines(kvm_home)
    program = Path(f"/proc/{pid}/exe").readlink().name
    assert ("qemu-system" if driver == "qemu" else "firecracker") in program
    opened = {os.path.realpath(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    assert "/dev/kvm" in opened, "it runs under KVM, not under emulation"
    assert shared.info.boot_mode == "restore", "a create is a restore of the template's snapshot"


def test_commands_run_and_end_as_they_do(shared: Sandbox) -> None:
    done = shared.exec("echo out; echo err >&2; exit 3", env={"A": "b"})
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    assert shared.exec(["printenv", "A"], env={"A": "b c"}).stdout == "b c\n"
    assert shared.exec("cat", stdin="typed").stdout == "typed"
    lines = shared.exec("for i in 1 2 3; do echo $i; sleep 0.2; done", background=True)
    assert list(lines.stdout) == ["1\n", "2\n", "3\n"]


def test_files_come_and_go_whole(shared: Sandbox, tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    shared.filesystem.write("/root/random", data)
    assert shared.filesystem.read("/root/random") == data
    assert shared.filesystem.stat("/root/random").size_bytes == len(data)
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/name with spaces").write_text("é\n")
    shared.filesystem.upload(tmp_path / "tree", "/root/tree")
    shared.filesystem.download("/root/tree", tmp_path / "back")
    assert (tmp_path / "back/deep/name with spaces").read_text() == "é\n"
    shared.filesystem.remove("/root/tree", recursive=True)
    assert not shared.filesystem.exists("/root/tree")


def test_its_clock_and_disk_are_right(shared: Sandbox) -> None:
    assert clock_error_s(shared) < 2
    shared.exec("dd if=/dev/zero of=/root/large bs=1M count=64 conv=fsync", check=True)
    assert shared.exec("stat -c %s /root/large").stdout == f"{64 << 20}\n"
    assert shared.exec("dmesg | grep -ci 'i/o error'").stdout.strip() == "0"


def test_paused_it_stands_still_and_resumed_it_goes_on(shared: Sandbox) -> None:
    shared.exec("sh -c 'while :; do date +%s.%N > /tmp/tick; sleep 0.1; done' >/dev/null 2>&1 &")
    shared.pause()
    with pytest.raises(WrongState, match="is paused"):
        shared.exec("true")
    shared.resume()
    one = shared.exec("cat /tmp/tick").stdout
    assert one != shared.exec("sleep 1; cat /tmp/tick").stdout, "what ran, runs on"
    assert clock_error_s(shared) < 2


def test_without_a_network_nothing_is_reached(template: str) -> None:
    with Sandbox.create(template=template, network="none") as sbx:
        reach = "import socket; socket.create_connection(('10.0.2.2', 22), 5)"
        assert sbx.exec(["python3", "-c", reach]).exit_code != 0
        assert sbx.exec("echo up").stdout == "up\n"


def test_with_a_network_the_host_is_reached_and_by_a_copy_too(template: str) -> None:
    """At an address of the host's own, as what its user network reaches differs."""
    with (
        socket.create_server((host_address(), 0)) as server,
        Sandbox.create(template=template, network="user") as sbx,
    ):
        server.settimeout(60)
        where = server.getsockname()
        ask = f"import socket; print(socket.create_connection({where!r}, 30).recv(9).decode())"

        def reach(sandbox: Sandbox) -> str:
            asking = sandbox.exec(["python3", "-c", ask], background=True)
            link, _ = server.accept()
            with link:
                link.sendall(b"from host")
            return asking.wait().stdout

        assert reach(sbx) == "from host\n"
        with Sandbox.restore(sbx.snapshot().id) as copy:
            assert reach(copy) == "from host\n"
            assert reach(sbx) == "from host\n"


def test_deleted_it_is_gone(template: str, kvm_home: Home) -> None:
    sbx = Sandbox.create(template=template)
    (pid,) = [pid for pid in machines(kvm_home) if _is_of(pid, sbx, kvm_home)]
    sbx.delete()
    assert not Path(f"/proc/{pid}").exists()
    assert not (kvm_home.sandboxes / sbx.id).exists()
    assert sbx.refresh().state is SandboxState.DELETED


def _is_of(pid: int, sandbox: Sandbox, kvm_home: Home) -> bool:
    return Path(f"/proc/{pid}/cwd").samefile(kvm_home.sandboxes / sandbox.id / "vm")
