"""What the Firecracker driver does without a machine: files, its control socket, and what it says of a host."""

from __future__ import annotations

import asyncio
import gzip
import lzma
import os
import shutil
import struct
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from torpor.base import proc
from torpor.errors import DataDamaged, HostNotReady, InsufficientResources, VmmFailed
from torpor.layers.ram import PAGE, RamLayerWriter, compose
from torpor.layers.seal import seal
from torpor.vmm import console, kvm
from torpor.vmm.base import Disk, MachineSpec
from torpor.vmm.firecracker import FirecrackerDriver, clock, disks, host, kernel, network
from torpor.vmm.firecracker.api import Api, Refused
from torpor.vmm.firecracker.driver import _record
from torpor.vmm.firecracker.machine import FirecrackerMachine
from torpor.vmm.firecracker.memory import add_changed
from torpor.vmm.limits import RateLimits

Answer = Callable[[bytes], bytes]


def _asked(tmp_path: Path, answer: Answer, ask: Callable[[Api], Awaitable[object]]) -> object:
    """Return what `ask` got from a socket that answers each request with `answer`."""

    async def main() -> object:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"Length" in line), 0
            )
            writer.write(answer(head + await reader.readexactly(length)))
            await writer.drain()
            writer.close()

        async with await asyncio.start_unix_server(serve, tmp_path / "api.sock"):
            return await ask(Api(tmp_path / "api.sock", os.getpid()))

    return asyncio.run(main())


def _reply(status: bytes, body: bytes = b"") -> bytes:
    return (
        b"HTTP/1.1 "
        + status
        + b"\r\nContent-Length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
        + body
    )


def test_a_call_is_one_request_and_its_answer_is_read_to_its_end(tmp_path: Path) -> None:
    heard = []

    def answer(request: bytes) -> bytes:
        heard.append(request)
        return _reply(b"200 OK", b'{"state": "Paused"}')

    got = _asked(tmp_path, answer, lambda api: api.call("PATCH", "/vm", {"state": "Paused"}))
    assert got == {"state": "Paused"}
    assert heard[0].startswith(b"PATCH /vm HTTP/1.1\r\n")
    assert heard[0].endswith(b'\r\n\r\n{"state": "Paused"}')
    assert (
        _asked(tmp_path, lambda _: b"HTTP/1.1 204 \r\n\r\n", lambda a: a.call("PUT", "/x", {}))
        is None
    )


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (_reply(b"400 Bad", b'{"fault_message": "no such drive"}'), Refused, "no such drive"),
        (_reply(b"400 Bad", b"what?"), Refused, "what"),
        (b"220 mail ready\r\n\r\n", VmmFailed, "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", VmmFailed, "99999999999 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", VmmFailed, "cannot be asked"),
        (b"x" * 100_000, VmmFailed, "no end"),
        (_reply(b"200 OK", b"{"), VmmFailed, "no JSON"),
        (b"", VmmFailed, "cannot be asked"),
    ],
)
def test_nothing_of_an_answer_is_believed(
    tmp_path: Path, answer: bytes, kind: type[VmmFailed], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        _asked(tmp_path, lambda _: answer, lambda api: api.call("GET", "/"))
    assert type(caught.value) is kind


def test_a_control_socket_is_no_link_to_another(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()

    async def ask(api: Api) -> None:
        (tmp_path / "mine/api.sock").symlink_to(tmp_path / "other/api.sock")
        await Api(tmp_path / "mine/api.sock", 1).call("GET", "/")

    with pytest.raises(VmmFailed, match="cannot be asked"):
        _asked(tmp_path / "other", lambda _: _reply(b"200 OK"), ask)


def test_a_process_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(VmmFailed, match="ended"):
        asyncio.run(Api(tmp_path / "none.sock", 7).until_listening(lambda: False, timeout_s=10))
    with pytest.raises(VmmFailed, match=r"did not listen within 0\.05 s"):
        asyncio.run(Api(tmp_path / "none.sock", 7).until_listening(lambda: True, timeout_s=0.05))


def _kernel(payload: bytes, sectors: int = 3) -> bytes:
    """Return a bzImage that holds `payload`."""
    head = bytearray((sectors + 1) * 512)
    head[0x1F1] = sectors
    head[0x202:0x206] = b"HdrS"
    gap = b"decompressor"
    struct.pack_into("<II", head, 0x248, len(gap), len(payload))
    return bytes(head) + gap + payload + b"and more"


@pytest.mark.parametrize("how", ["gzip", "xz", "zstd", "none"])
def test_a_kernel_is_unpacked_once_beside_itself(tmp_path: Path, how: str) -> None:
    elf = b"\x7fELF" + os.urandom(5000)
    size = struct.pack("<I", len(elf))
    if how == "zstd" and shutil.which("zstd") is None:
        pytest.skip("there is no zstd to pack it with")
    packed = {
        "gzip": lambda: gzip.compress(elf) + size,
        "xz": lambda: lzma.compress(elf) + size,
        "zstd": lambda: (
            subprocess.run(["zstd", "-c"], input=elf, capture_output=True, check=True).stdout + size
        ),
        "none": lambda: elf,
    }[how]()
    path = tmp_path / "vmlinuz"
    path.write_bytes(_kernel(packed))
    made = asyncio.run(kernel.elf_of(path))
    assert made.read_bytes() == elf
    assert made.stat().st_mode & 0o222 == 0
    path.unlink()
    assert asyncio.run(kernel.elf_of(path)) == made, "it is there already"
    assert [entry.name for entry in tmp_path.iterdir()] == [made.name]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no kernel at all" * 100, "is no Linux kernel"),
        (_kernel(b"what is this" * 9), "not known"),
        (_kernel(b"\x1f\x8b" + b"x" * 99), "cannot be unpacked"),
        (_kernel(gzip.compress(b"a shell script") + b"size"), "is no ELF image"),
    ],
)
def test_what_is_no_kernel_is_told(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "vmlinuz").write_bytes(data)
    with pytest.raises(VmmFailed, match=words):
        asyncio.run(kernel.elf_of(tmp_path / "vmlinuz"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["vmlinuz"]


def test_an_empty_disk_is_filled_with_the_newest_layer_and_once(tmp_path: Path) -> None:
    old, new, active = (tmp_path / name for name in ("old.raw", "new.raw", "active.raw"))
    old.write_bytes(b"o" * PAGE)
    with new.open("wb") as file:
        file.truncate(1 << 20)
        file.seek(512 << 10)
        file.write(b"n" * PAGE)
    disks.make_empty(active, 2 << 20)
    asyncio.run(disks.fill(active, (old, new)))
    content = active.read_bytes()
    assert len(content) == 2 << 20, "as large as it was made"
    assert content[512 << 10 : (512 << 10) + PAGE] == b"n" * PAGE
    assert content.count(0) == (2 << 20) - PAGE
    assert active.stat().st_blocks * 512 < 1 << 20, "holes stay holes"
    with active.open("r+b") as file:
        file.write(b"written by a machine")
    asyncio.run(disks.fill(active, (old,)))
    assert active.read_bytes().startswith(b"written by a machine")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "active.raw",
        "new.raw",
        "old.raw",
    ]


def _moved(folder: Path) -> tuple[Path, Path, Path]:
    """Return a disk and what a QEMU wrote over it, both sealed, and an empty disk that they are to be in."""
    base, delta, active = (folder / name for name in ("base.raw", "delta.qcow2", "active.raw"))
    base.write_bytes(b"b" * (1 << 20))
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", delta, "2M"], check=True)
    subprocess.run(
        ["qemu-io", "-f", "qcow2", "-c", "write -P 100 1M 64k", str(delta)],
        check=True,
        capture_output=True,
    )
    for path in (base, delta):
        seal(path)
    disks.make_empty(active, 2 << 20)
    return base, delta, active


def test_a_disk_that_qemu_made_is_read_with_its_whole_chain(folder: Path) -> None:
    base, delta, active = _moved(folder)
    before = active.stat()
    asyncio.run(disks.fill(active, (base, delta)))
    content = active.read_bytes()
    assert content[: 1 << 20] == b"b" * (1 << 20)
    assert content[1 << 20 :] == b"d" * (64 << 10) + bytes((1 << 20) - (64 << 10))
    after = active.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        before.st_uid,
        before.st_gid,
        before.st_mode,
    )
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("how", ["data_file", "backing", "middle"])
def test_no_file_that_a_layer_names_is_read(folder: Path, how: str) -> None:
    base, delta, active = _moved(folder)
    secret = folder.parent / "secret"
    secret.write_bytes(b"s" * (2 << 20))
    delta.chmod(0o600)
    names = ["-b", secret, "-F", "raw"] if how == "backing" else ["-o", f"data_file={secret}"]
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *names, delta, "2M"], check=True)
    seal(delta)
    secret.write_bytes(b"s" * (2 << 20))
    layers = [base, delta]
    if how == "middle":
        layers.append(folder / "newest.qcow2")
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", layers[-1], "2M"], check=True)
        seal(layers[-1])
    with pytest.raises(DataDamaged, match=f"{delta.name} names a backing file, or wants features"):
        asyncio.run(disks.fill(active, layers))
    assert active.stat().st_blocks == 0
    assert not list(folder.glob(".*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users read layers")
def test_who_reads_a_layer_may_read_layers_and_nothing_else(folder: Path) -> None:
    base, delta, active = _moved(folder)
    base.chmod(0o400)
    with pytest.raises(VmmFailed, match="Permission denied"):
        asyncio.run(disks.fill(active, (base, delta)))
    assert active.stat().st_blocks == 0
    assert not list(folder.glob(".*"))


def test_a_disk_that_cannot_be_filled_is_as_empty_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, active = tmp_path / "source.raw", tmp_path / "active.raw"
    source.write_bytes(b"s" * PAGE)
    disks.make_empty(active, PAGE)

    def full(_source: Path, target: Path) -> bool:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disks, "clone_file", full)
    with pytest.raises(InsufficientResources):
        asyncio.run(disks.fill(active, (source,)))
    assert active.read_bytes() == bytes(PAGE)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["active.raw", "source.raw"]


def _memory(path: Path, pages: int, written: dict[int, bytes]) -> None:
    with path.open("wb") as file:
        file.truncate(pages * PAGE)
        for number, data in written.items():
            file.seek(number * PAGE)
            file.write(data * PAGE)


@pytest.mark.parametrize("is_restored", [True, False])
def test_changed_pages_are_those_that_were_written(tmp_path: Path, is_restored: bool) -> None:
    memory, layer, image = tmp_path / "ram", tmp_path / "layer", tmp_path / "image"
    _memory(memory, 64, {3: b"a", 4: b"b", 9: b"\0", 63: b"c"})
    changed = np.array([3, 9, 20, 63]) if is_restored else None
    with RamLayerWriter(layer, 64 * PAGE) as writer:
        add_changed(memory, 64 * PAGE, changed, writer)
        made = writer.finish()
    pages = {
        page for run in made.runs for page in range(run.first_page, run.first_page + run.pages)
    }
    assert pages == ({3, 9, 63} if is_restored else {3, 4, 9, 63}), (
        "20 was written too late, 4 by nobody"
    )
    compose((layer,), image)
    data = image.read_bytes()
    assert data[3 * PAGE : 4 * PAGE] == b"a" * PAGE
    assert data[63 * PAGE :] == b"c" * PAGE


def test_memory_that_is_none_of_the_machines_is_refused(tmp_path: Path) -> None:
    memory = tmp_path / "ram"
    _memory(memory, 3, {0: b"x"})
    with RamLayerWriter(tmp_path / "layer", 4 * PAGE) as writer:
        with pytest.raises(VmmFailed, match="12288 of 16384 bytes"):
            add_changed(memory, 4 * PAGE, None, writer)
        memory.unlink()
        memory.symlink_to("/etc/passwd")
        with pytest.raises(OSError, match="symbolic"):
            add_changed(memory, 4 * PAGE, None, writer)
    assert not (tmp_path / "layer").exists()


def _program(path: Path, says: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("Firecracker v1.11.3", "is version 1.11.3; 1.12 or newer is wanted"),
        ("hello", "said nothing that is a version"),
    ],
)
def test_a_firecracker_that_is_none_or_old_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, words: str
) -> None:
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(True, "it is real"))
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(_program(tmp_path / "fc", says)))
    support = asyncio.run(host.probe())
    assert not support.usable
    assert words in support.reason
    assert support.fix is not None
    assert "unset it and run: sudo" in support.fix
    assert "torpor host setup" in support.fix
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(tmp_path / "none"))
    with pytest.raises(HostNotReady, match="which is no program"):
        asyncio.run(host.find_firecracker())


@pytest.mark.parametrize(
    ("is_there", "module", "words"),
    [(False, True, "does not exist"), (True, False, "neither kvm_intel nor kvm_amd")],
)
def test_firecracker_needs_a_kvm_that_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool, module: bool, words: str
) -> None:
    program = _program(tmp_path / "fc", "Firecracker v1.12.1")
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(program))
    if is_there:
        (tmp_path / "kvm").touch()
    if module:
        (tmp_path / "module/kvm_amd").mkdir(parents=True)
    found = kvm.look(tmp_path / "module", tmp_path / "kvm")
    monkeypatch.setattr(kvm, "look", lambda: found)
    with pytest.raises(HostNotReady, match=words):
        asyncio.run(host.find_firecracker())


def test_a_firecracker_that_is_missing_is_named_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(True, "it is real"))
    monkeypatch.delenv("TORPOR_FIRECRACKER", raising=False)
    with monkeypatch.context() as bare:
        bare.setattr(shutil, "which", lambda *_, **__: None)
        with pytest.raises(HostNotReady, match="Firecracker is not installed") as caught:
            asyncio.run(host.find_firecracker())
    assert "torpor host setup" in str(caught.value.hint)
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF of another machine")
    broken.chmod(0o755)
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(broken))
    support = asyncio.run(host.probe())
    assert not support.usable
    assert "is no Firecracker that runs here" in support.reason


def test_a_kvm_that_we_may_not_open_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(_program(tmp_path / "fc", "Firecracker v1.12.1")))
    device, modules, folder = tmp_path / "kvm", tmp_path / "module", tmp_path / "sbx_one"
    device.touch()
    (modules / "kvm_amd").mkdir(parents=True)
    folder.mkdir()
    opened = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != device and opened(path, mode)
    )
    found = kvm.look(modules, device)
    monkeypatch.setattr(kvm, "look", lambda: found)
    spec = MachineSpec(
        vcpus=1,
        ram_mib=128,
        network="none",
        kernel=tmp_path / "none",
        initrd=tmp_path / "none",
        cmdline="",
        disk=Disk((), tmp_path / "none"),
    )
    with pytest.raises(HostNotReady, match="this user may not open it") as caught:
        asyncio.run(FirecrackerDriver().start(folder, spec))
    assert "usermod -aG kvm" in str(caught.value.hint)
    assert not list(folder.iterdir())


def test_a_resolver_that_only_the_host_reaches_is_not_given_to_guests(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("search example\nnameserver 127.0.0.53\nnameserver fe80::1\n")
    two.write_text("nameserver 192.0.2.7\n")
    assert network._resolver((one, two)) == "192.0.2.7"
    assert network._resolver((one, tmp_path / "none")) is None


@pytest.mark.parametrize("earlier", [b"", b"[   99.0] reboot: Power down\n"])
@pytest.mark.parametrize("words", ["reboot: Power off not available: System halted instead", ""])
def test_a_machine_that_powered_off_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, earlier: bytes
) -> None:
    monkeypatch.setattr("torpor.vmm.firecracker.machine._CONSOLE_LOOK_S", 0.01)
    (tmp_path / "vm").mkdir()
    with (tmp_path / "vm/console.log").open("ab") as said:
        said.write(earlier)
        console.begin(said)
        said.write(f"[    2.0] init\n[  269.0] {words}\n".encode())

    async def main() -> bool:
        with (tmp_path / "log").open("wb") as log:
            process = proc.start_detached(["sleep", "100"], log=log)
        machine = FirecrackerMachine(process, tmp_path, None, 1 << 20, RateLimits())
        try:
            async with asyncio.timeout(10 if words else 0.3):
                await machine.wait()
        except TimeoutError:
            pass
        lives = process.alive()
        await machine.kill()
        return lives

    assert asyncio.run(main()) is (not words)


@pytest.mark.parametrize("then", ["answers", "ends", "is silent"])
def test_a_machine_that_is_being_saved_is_waited_for_by_the_next_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr("torpor.vmm.firecracker.machine._STATUS_S", 0.05)
    if then == "is silent":
        monkeypatch.setattr("torpor.vmm.firecracker.machine._SAVE_S", 0.3)
    (tmp_path / "vm").mkdir()
    with (tmp_path / "log").open("wb") as log:
        process = proc.start_detached(["sleep", "100"], log=log)
    _record(tmp_path, process, None, 1 << 20, "1.12.1")

    async def main() -> object:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            if then == "answers":
                await asyncio.sleep(0.3)
                writer.write(_reply(b"200 OK", b'{"state": "Paused"}'))
            elif then == "ends":
                await process.kill()
            else:
                await reader.read()
            writer.close()

        async with await asyncio.start_unix_server(serve, tmp_path / "vm/api.sock"):
            machine = await FirecrackerDriver().adopt(tmp_path)
            assert machine is not None
            return machine.process.alive()

    try:
        if then == "is silent":
            with pytest.raises(VmmFailed, match="did not answer 'GET /'"):
                asyncio.run(main())
        else:
            assert asyncio.run(main()) is (then == "answers")
    finally:
        asyncio.run(process.kill())


def _state(body: bytes) -> bytes:
    return body + clock.crc(body).to_bytes(8, "little")


def test_the_sum_of_a_state_file_is_the_one_that_is_known() -> None:
    assert clock.crc(b"123456789") == 0xE9C6D914C4B8D9CA


def test_a_machines_clock_is_saved_without_the_time_of_day() -> None:
    saved = struct.pack("<QIIQQ16x", 77_000_000_000, 4 | 8, 0, 1_500, 42)
    before, after = os.urandom(629), os.urandom(900)
    state = _state(before + saved + after)
    still = clock.kept_still(state, 1_000, 2_000)
    assert still == _state(before + saved.replace(b"\x0c\0\0\0", bytes(4), 1) + after)
    assert struct.unpack_from("<QIIQQ", still, 629) == (77_000_000_000, 0, 0, 1_500, 42)


@pytest.mark.parametrize(
    "what", ["another time", "no clock", "two of them", "another sum", "short"]
)
def test_a_state_that_is_not_as_is_known_stays_as_it_is(what: str) -> None:
    saved = struct.pack("<QIIQQ16x", 77, 4 | 8, 0, 2_001 if what == "another time" else 1_500, 42)
    bodies = {"no clock": b"body" * 99, "two of them": saved * 2, "short": saved[:30]}
    state = _state(bodies.get(what, b"head" + saved + b"tail"))
    if what == "another sum":
        state = state[:-1] + bytes([state[-1] ^ 1])
    assert clock.kept_still(state, 1_000, 2_000) is state
