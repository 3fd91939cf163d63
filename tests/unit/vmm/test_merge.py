"""Merging disk layers with the real qemu-img: the guest sees the same disk, the layers are not touched."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from torpor.errors import DataDamaged, VmmFailed
from torpor.layers.seal import seal
from torpor.layers.verify import digest
from torpor.vmm import chains
from torpor.vmm.chains import check_plain
from torpor.vmm.qemu import merge as module
from torpor.vmm.qemu.merge import merge

QEMU_IMG = Path(shutil.which("qemu-img") or "/missing")
QEMU_IO = shutil.which("qemu-io")
pytestmark = pytest.mark.skipif(
    not QEMU_IMG.exists() or QEMU_IO is None, reason="qemu-img and qemu-io are not installed"
)
MIB = 1 << 20


def _base(folder: Path, size_mib: int = 16) -> Path:
    path = folder.parent / "disk.raw"
    path.write_bytes(random.Random(7).randbytes(size_mib * MIB))
    seal(path)
    return path


def _layer(below: list[Path], path: Path, size_mib: int, *commands: str) -> Path:
    """Make a layer over `below` as a machine would, and seal it."""
    subprocess.run([QEMU_IMG, "create", "-q", "-f", "qcow2", path, f"{size_mib}M"], check=True)
    node = chains.node(path, chains.chain(below), writable=True)
    words = [word for command in commands for word in ("-c", command)]
    subprocess.run([str(QEMU_IO), *words, f"json:{module.json.dumps(node)}"], check=True)
    seal(path)
    return path


def _content(files: list[Path], out: Path) -> str:
    name = f"json:{module.json.dumps(chains.chain(files))}"
    subprocess.run([QEMU_IMG, "convert", "-O", "raw", name, out], check=True)
    found = digest(out)
    out.unlink()
    return found


def _family(folder: Path) -> list[Path]:
    """Return a template's disk and five layers: overwritten, zeroed and discarded parts, and a disk that grew."""
    files = [_base(folder)]
    for number, (size, commands) in enumerate(
        [
            (32, ("write -P 17 0 1M", "write -P 3 10M 3M", "write -z 3M 1M")),
            (32, ("write -P 18 512k 64k", "write -z -u 11M 1M", "discard 5M 1M", "write 15M 4k")),
            (32, ("write -P 19 1M 100k", "write -z 15M 4k", "write -P 20 30M 1M")),
            (64, ("write -P 21 50M 1M", "discard 30M 1M")),
            (64, ("write -P 22 51M 1M", "write -P 1 4M 5k", "write -P 0 0 64k")),
        ]
    ):
        files.append(_layer(files, folder / f"lyr_{number}.qcow2", size, *commands))
    return files


@pytest.mark.parametrize(("start", "end"), [(1, 6), (1, 3), (2, 4), (3, 6)])
def test_the_disk_is_the_same_and_no_layer_was_touched(folder: Path, start: int, end: int) -> None:
    files = _family(folder)
    before = [(digest(path), path.stat().st_mtime_ns) for path in files]
    out = folder / "lyr_out.qcow2"
    asyncio.run(merge(QEMU_IMG, files[:start], files[start:end], out))
    check_plain(out)
    assert str(folder).encode() not in out.read_bytes()[: 1 << 16], "no file's name is in it"
    merged = [*files[:start], out, *files[end:]]
    raw = folder / "raw"
    assert _content(merged, raw) == _content(files, raw)
    assert _content(merged[: start + 1], raw) == _content(files[:end], raw)
    assert [(digest(path), path.stat().st_mtime_ns) for path in files] == before
    size = sum(path.stat().st_size for path in files[start:end])
    assert out.stat().st_size < size + MIB, "it holds what the layers hold, not the template's disk"


@pytest.mark.parametrize("end", [2, 4])
def test_a_volumes_chain_lies_over_nothing(folder: Path, end: int) -> None:
    raw = _base(folder)
    files = [folder / "lyr_base.qcow2"]
    subprocess.run([QEMU_IMG, "convert", "-O", "qcow2", raw, files[0]], check=True)
    seal(files[0])
    for number, commands in enumerate(
        [("write -P 17 0 1M", "discard 5M 1M"), ("write -z 1M 1M",), ("write -P 3 20M 1M",)]
    ):
        files.append(_layer(files, folder / f"lyr_{number}.qcow2", 32, *commands))
    out = folder / "lyr_out.qcow2"
    asyncio.run(merge(QEMU_IMG, [], files[:end], out))
    check_plain(out)
    assert _content([out, *files[end:]], folder / "raw") == _content(files, folder / "raw")
    seal(out)
    again = folder / "lyr_again.qcow2"
    asyncio.run(merge(QEMU_IMG, [out], files[end:], again)) if end < 4 else None
    moved = folder / "lyr_moved.qcow2"  # its first layer is another driver's
    asyncio.run(merge(QEMU_IMG, [], [raw, files[1]], moved))
    assert _content([moved], folder / "raw") == _content(files[:2], folder / "raw")
    junk = folder / "lyr_junk.qcow2"
    junk.write_bytes(raw.read_bytes()[:4096])
    with pytest.raises(DataDamaged):
        asyncio.run(merge(QEMU_IMG, [], [junk, files[1]], folder / "lyr_no.qcow2"))
    assert not (folder / "lyr_no.qcow2").exists()


def test_a_merge_that_is_not_the_same_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = _family(folder)
    real = module._img

    async def lossy(qemu_img: Path, *words: str, cwd: Path | None = None) -> None:
        if words[0] == "rebase" and "-u" not in words:
            return  # the older layers' content is not taken over
        await real(qemu_img, *words, cwd=cwd)

    monkeypatch.setattr(module, "_img", lossy)
    out = folder / "lyr_out.qcow2"
    with pytest.raises(VmmFailed, match="not the same disk"):
        asyncio.run(merge(QEMU_IMG, files[:1], files[1:], out))
    assert not out.exists()


def test_a_layer_that_names_another_file_is_not_opened(folder: Path) -> None:
    files = _family(folder)
    secret = folder.parent / "secret"
    secret.write_bytes(b"s" * MIB)
    path = files[2]
    path.chmod(0o600)
    subprocess.run(
        [QEMU_IMG, "create", "-q", "-f", "qcow2", "-o", f"data_file={secret}", path, "32M"],
        check=True,
    )
    with pytest.raises(DataDamaged, match="wants features 0x4"):
        asyncio.run(merge(QEMU_IMG, files[:1], files[1:], folder / "lyr_out.qcow2"))
    subprocess.run(
        [QEMU_IMG, "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", path, "32M"],
        check=True,
    )
    with pytest.raises(DataDamaged, match="names a backing file"):
        check_plain(path)
    path.write_bytes(b"QFI\xfb" + struct.pack(">I", 2) + bytes(96))
    with pytest.raises(DataDamaged, match="version 3"):
        check_plain(path)
    path.write_bytes(b"QFI\xfb")
    with pytest.raises(DataDamaged, match="no qcow2"):
        check_plain(path)


@pytest.mark.parametrize("after_s", [0, 0.001, 0.01, 0.05, 0.1])
def test_a_merge_that_is_broken_off_leaves_nothing(folder: Path, after_s: float) -> None:
    files = _family(folder)
    out = folder / "lyr_out.qcow2"

    async def main() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await merge(QEMU_IMG, files[:1], files[1:], out)
                out.unlink()

    asyncio.run(main())
    assert not out.exists()
