"""The guest's kernel as Firecracker wants it: the ELF image that a distribution's `vmlinuz` holds compressed."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import lzma
import shutil
import struct
from pathlib import Path

from torpor.base.fsio import replacing
from torpor.base.proc import run
from torpor.errors import HostNotReady, TorporError, VmmFailed
from torpor.layers.seal import seal
from torpor.layers.space import full_disk_told

NAME = "vmlinux"
_ELF = b"\x7fELF"
_ZSTD = b"\x28\xb5\x2f\xfd"
_HEADER = struct.Struct("<II")
_HEADER_AT = 0x248
"""Where a bzImage says at which place behind its setup code the payload is, and how long (Documentation/arch/x86/boot.rst)."""
_SETUP_SECTORS_AT = 0x1F1
_MAGIC_AT = 0x202


async def elf_of(kernel: Path) -> Path:
    """Return the ELF image of `kernel`, which is made beside it, durably, when it is first wanted.

    Raises:
        HostNotReady: it is compressed with Zstandard, and nothing here unpacks that.
        InsufficientResources: the disk is full.
        VmmFailed: it is no kernel that can be unpacked.
    """
    made = kernel.with_name(NAME)
    if made.exists():
        return made
    data = await _unpacked(await asyncio.to_thread(_payload, kernel), kernel)
    if not data.startswith(_ELF):
        raise VmmFailed(f"what {kernel} holds is no ELF image", path=kernel)

    def write() -> None:
        with full_disk_told(str(made)), replacing(made) as file:
            file.write(data)
            seal(file.fileno())

    await asyncio.to_thread(write)
    return made


def _payload(kernel: Path) -> bytes:
    """Return what is compressed in a bzImage, or the whole file when it is an ELF image already."""
    data = kernel.read_bytes()
    if data.startswith(_ELF):
        return data
    if data[_MAGIC_AT : _MAGIC_AT + 4] != b"HdrS":
        raise VmmFailed(f"{kernel} is no Linux kernel", path=kernel)
    offset, length = _HEADER.unpack_from(data, _HEADER_AT)
    begin = ((data[_SETUP_SECTORS_AT] or 4) + 1) * 512 + offset
    return data[begin : begin + length]


async def _unpacked(payload: bytes, kernel: Path) -> bytes:
    if payload.startswith(_ELF):
        return payload
    body = payload[:-4]  # behind it lies the size that it unpacks to
    try:
        if payload.startswith(_ZSTD):
            return await _zstd(body)
        if payload.startswith(b"\xfd7zXZ\0"):
            return await asyncio.to_thread(lzma.decompress, body)
        if payload.startswith(b"\x1f\x8b"):
            return await asyncio.to_thread(gzip.decompress, body)
    except (OSError, EOFError, lzma.LZMAError) as exc:
        raise VmmFailed(f"{kernel} cannot be unpacked: {exc}", path=kernel) from exc
    raise VmmFailed(f"{kernel} is compressed in a way that is not known", path=kernel)


def finds_zstd() -> str | None:
    """Return what unpacks Zstandard here; None: nothing does."""
    if importlib.util.find_spec("zstandard") is not None:
        return "Python's zstandard"
    return shutil.which("zstd")


async def _zstd(body: bytes) -> bytes:
    try:
        import zstandard
    except ImportError:
        tool = shutil.which("zstd")
        if tool is None:
            raise HostNotReady(
                "the guest's kernel is compressed with Zstandard, which nothing here unpacks",
                hint="run: sudo apt-get install zstd",
            ) from None
        try:
            return (await run([tool, "-dc"], timeout_s=120, stdin=body)).stdout
        except TorporError as exc:
            raise OSError(exc.message) from exc
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            return await asyncio.to_thread(reader.read)
    except zstandard.ZstdError as exc:
        raise OSError(str(exc)) from exc
