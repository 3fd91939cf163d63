"""The programs that are put into a machine to keep interpreters there; its own Python runs them."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

from torpor.base.ids import new_id
from torpor.errors import Conflict, GuestFailed, NotFound
from torpor.guest.port import Guest
from torpor.model_contexts import contexts_folder, program_folder

_SOURCES = Path(__file__).parent / "inside"


async def put_program(guest: Guest) -> str:
    """Return the folder of the programs in the guest, after putting them there if they are not.

    It is in RAM there, is named after what is in it and never changed, so that contexts made by another version
    go on with theirs.
    """
    digest, archive = await asyncio.to_thread(_packed)
    folder = program_folder(digest)
    try:
        await guest.stat(f"{folder}/serve.py")
    except NotFound:
        await guest.mkdir(
            contexts_folder(), mode=0o1777
        )  # each context's user makes a folder in it
        partial = f"{folder}.{new_id('exec')}"
        await guest.unpack(partial, _once(archive))
        try:
            await guest.rename(partial, folder)
        except (Conflict, GuestFailed):  # somebody else was first
            await guest.remove(partial, recursive=True)
            await guest.stat(f"{folder}/serve.py")
    return folder


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


@functools.cache
def _packed() -> tuple[str, bytes]:
    """Return the sources' digest, and the sources as a tar archive."""
    hasher, packed = hashlib.sha256(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(_SOURCES.glob("*.py")):
            data = path.read_bytes()
            hasher.update(f"{path.name} {len(data)}\0".encode() + data)
            entry = tarfile.TarInfo(path.name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return hasher.hexdigest()[:16], packed.getvalue()
