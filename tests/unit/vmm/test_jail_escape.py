"""A Firecracker that was taken over, in a real root of its own: what its disks are is the kernel's word and our folder's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torpor.base.proc import ProcessId
from torpor.errors import VmmFailed
from torpor.vmm.firecracker import config, disks, drives, jail, volumes
from torpor.vmm.firecracker.machine import FirecrackerMachine
from torpor.vmm.limits import RateLimits

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or jail._lacking() is not None, reason="this user can make no jail"
)
UID = 1_900_000_042
SECRET = b"secret of the host" * 1000
_JAILED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def do(number):
    if number != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
vm, given = (path.encode() for path in sys.argv[1:3])
do(libc.unshare(0x20000))  # CLONE_NEWNS
do(libc.mount(None, b"/", None, 0x44000, None))  # MS_REC | MS_PRIVATE
do(libc.mount(vm, vm, None, 0x1000, None))  # MS_BIND
do(libc.mount(given, vm + b"/in", None, 0x1000, None))
os.chdir(vm)
do(libc.syscall(155, b".", b"."))  # pivot_root
do(libc.umount2(b".", 2))  # MNT_DETACH
os.chdir("/")
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[3]))
print("there", flush=True)
files = {}
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Jailed:
    """A process with `vm/` as its root, which does what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sbx_1"
        self.inner = self.folder / "vm"
        self.inner.mkdir(parents=True)
        self.layers = folder / "layers"
        self.layers.mkdir()
        os.chown(self.inner, UID, UID)
        jail.Jailer(Path("j"), Path("firecracker")).prepare(self.folder, "one")
        self.root = self.disk("root", b"r" * 4096)
        drives.lead(self.inner, config.DISK, self.root)
        volumes.clear(self.folder)
        argv = [sys.executable, "-c", _JAILED, str(self.inner), str(self.folder / "in"), str(UID)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"there\n"
        self.open(config.DISK, *map(config.volume_name, config.SLOTS))

    def disk(self, name: str, content: bytes = b"") -> Path:
        path = self.layers / f"{name}.raw"
        path.write_bytes(content)
        os.chown(path, UID, UID)
        path.chmod(0o600)
        return path

    def does(self, *lines: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for line in lines:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == b"done\n", line

    def open(self, *names: str) -> None:
        for name in names:
            self.does(f"files[{name!r}] = open({name!r}, 'r+b', buffering=0)")

    def opened(self) -> dict[str, drives.Opened]:
        return dict(drives.opened(self.inner, self.process.pid))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


@pytest.fixture
def jailed(tmp_path: Path) -> Iterator[Jailed]:
    (tmp_path / "secret").write_bytes(SECRET)
    made = Jailed(tmp_path)
    yield made
    made.end()


class PaperApi:
    """Lets the process open anew what a drive's name leads to."""

    def __init__(self, jailed: Jailed) -> None:
        self._jailed = jailed

    async def call(
        self, method: str, path: str, body: object = None, *, timeout_s: float = 10.0
    ) -> object:
        assert timeout_s > 0
        if path.startswith("/drives/"):
            assert method == "PATCH"
            assert isinstance(body, dict)
            self._jailed.open(body["path_on_host"])
        return {"state": "Paused"}


def _machine(jailed: Jailed) -> FirecrackerMachine:
    process = ProcessId.of(jailed.process.pid)
    assert process is not None
    machine = FirecrackerMachine(process, jailed.folder, None, 1 << 20, RateLimits())
    machine.api = PaperApi(jailed)  # type: ignore[assignment]
    machine._volumes._api = machine.api
    return machine


def test_a_disk_is_switched_again_and_again(jailed: Jailed) -> None:
    machine = _machine(jailed)
    for number in range(3):
        assert asyncio.run(machine.active_disk()) == ("root" if number == 0 else f"{number}")
        jailed.does(f"files['disk'].seek({number}); files['disk'].write(b'{number}')")
        overlay = jailed.layers / f"{number + 1}.raw"
        disks.make_empty(overlay, 8192)
        asyncio.run(machine.switch_disk(overlay))
        assert [path.name for path in (jailed.folder / "in").iterdir()] == [overlay.name]
    assert jailed.root.read_bytes()[:4] == b"0rrr"
    assert (jailed.layers / "2.raw").read_bytes()[:4] == b"012r"
    assert overlay.read_bytes() == b"012" + b"r" * 4093 + bytes(4096)
    assert overlay.stat().st_uid == UID


def test_a_disk_that_has_no_name_in_the_jail_any_more_is_switched(jailed: Jailed) -> None:
    """A daemon that died within a switch has led the name elsewhere, and the next one took the old name away."""
    drives.lead(jailed.inner, config.DISK, jailed.disk("soon"))
    drives.let_go(jailed.inner)
    assert [path.name for path in (jailed.folder / "in").iterdir()] == ["soon.raw"]
    machine = _machine(jailed)
    assert asyncio.run(machine.active_disk()) == "root"
    overlay = jailed.layers / "next.raw"
    disks.make_empty(overlay, 4096)
    asyncio.run(machine.switch_disk(overlay))
    assert overlay.read_bytes() == b"r" * 4096


def test_a_volume_grows_and_is_switched(jailed: Jailed) -> None:
    machine = _machine(jailed)
    drives.lead(jailed.inner, "volume1", jailed.disk("one", b"v" * 4096))
    jailed.open("volume1")
    asyncio.run(machine.resize_volume(1, 8192))
    assert (jailed.layers / "one.raw").stat().st_size == 8192
    overlay = jailed.layers / "two.raw"
    disks.make_empty(overlay, 8192)
    asyncio.run(machine.switch_volume(1, overlay))
    assert overlay.read_bytes() == b"v" * 4096 + bytes(4096)
    assert asyncio.run(machine.volumes()) == {1: "two"}


def _own(jailed: Jailed, secret: Path) -> None:
    """Have a disk of its own making, whose name leads to a file of the host."""
    jailed.does(
        "os.unlink('disk'); os.symlink('evil.raw', 'disk')",
        "files['disk'] = open('evil.raw', 'w+b')",
        f"os.unlink('evil.raw'); os.symlink({str(secret)!r}, 'evil.raw')",
    )


def _own_volume(jailed: Jailed, secret: Path) -> None:
    jailed.does(
        "os.unlink('volume1'); os.symlink('evil.raw', 'volume1')",
        "files['volume1'] = open('evil.raw', 'w+b')",
        f"os.unlink('evil.raw'); os.symlink({str(secret)!r}, 'evil.raw')",
    )


def _called_alike(jailed: Jailed, secret: Path) -> None:
    """Have one that is called as the one that was given is."""
    jailed.does(
        "os.mkdir('x'); files['disk'] = open('x/root.raw', 'w+b')",
        f"os.unlink('x/root.raw'); os.symlink({str(secret)!r}, 'x/root.raw')",
    )


@pytest.mark.parametrize("how", [_own, _own_volume, _called_alike])
def test_no_disk_of_its_own_making_is_believed(
    jailed: Jailed, tmp_path: Path, how: Callable[[Jailed, Path], None]
) -> None:
    secret = tmp_path / "secret"
    how(jailed, secret)
    machine = _machine(jailed)
    overlay = jailed.layers / "next.raw"
    disks.make_empty(overlay, 1 << 20)
    for ask in (
        machine.switch_disk(overlay),
        machine.switch_volume(1, overlay),
        machine.resize_volume(1, 1 << 20),
    ):
        with pytest.raises(VmmFailed, match="a disk that it was not given"):
            asyncio.run(ask)  # type: ignore[arg-type]
    assert overlay.read_bytes() == bytes(1 << 20)
    assert secret.read_bytes() == SECRET


def test_what_it_opens_meanwhile_is_not_read_instead(jailed: Jailed, tmp_path: Path) -> None:
    found = jailed.opened()[config.DISK]
    with found.held() as file:
        jailed.does("os.unlink('disk')")
        (jailed.folder / "in/root.raw").unlink()
        (jailed.folder / "in/root.raw").symlink_to(tmp_path / "secret")
        assert file.read_bytes() == b"r" * 4096
    with found.held() as file:
        assert file.read_bytes() == b"r" * 4096, "not what its name leads to by now"
    jailed.does("other = open('own.raw', 'w+b'); os.dup2(other.fileno(), files['disk'].fileno())")
    with pytest.raises(VmmFailed, match="is not"), found.held():
        pass
    jailed.does("files['disk'].close()")
    with pytest.raises(VmmFailed, match="open no more"), found.held():
        pass


def test_a_layer_that_it_only_reads_is_never_written_for_it(jailed: Jailed) -> None:
    layer = jailed.disk("layer", b"l" * 4096)
    os.chown(layer, 0, UID)
    layer.chmod(0o440)
    drives.lead(jailed.inner, "volume7", layer)
    jailed.does(
        "os.unlink('volume1'); os.symlink('in/layer.raw', 'volume1')",
        "files['volume7'] = open('in/layer.raw', 'rb')",
    )
    with pytest.raises(VmmFailed, match="belongs to another"):
        asyncio.run(_machine(jailed).resize_volume(1, 8192))
    assert layer.stat().st_size == 4096
