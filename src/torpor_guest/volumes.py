"""Volumes in the guest: a disk that the host plugged in, found, mounted at a path, made larger, and let go.

A place for a volume is one of a SCSI controller, where disks come and go, or a virtio disk that is always there (see
`places`). A file system is never made here. What cannot be mounted is an error with a hint, and stays as it is.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from pathlib import Path
from typing import Any

from torpor_guest import errors
from torpor_guest.busy import holders
from torpor_guest.errors import AgentError
from torpor_guest.kernel import Kernel
from torpor_guest.mounts import Volume, top_at, volumes
from torpor_guest.paths import checked
from torpor_guest.places import Places, blocks_of
from torpor_guest.programs import Programs
from torpor_guest.stream import Stream
from torpor_guest.threads import in_own_thread
from torpor_guest.uevents import uevents
from torpor_guest.users import Image, find_user

_APPEAR_S = 30.0
_LOOK_S = 1.0
"""A device is waited for by the kernel's news; this often it is looked for without."""
_PROGRAM_S = 3600.0
_SERIAL = re.compile(r"[0-9A-Za-z_-]{1,20}")
_SLOTS = range(1, 17)
_RESERVED = ("/", "/proc", "/sys", "/dev", "/run/torpor", "/var/lib/torpor", "/etc/torpor", "/boot")
_CORRECTED = (0, 1, 2)
"""How e2fsck ends when the file system is good now."""


class VolumeMethods:
    """What the host asks about volumes."""

    def __init__(self, kernel: Kernel, programs: Programs, image: Image) -> None:
        self._kernel = kernel
        self._programs = programs
        self._image = image
        self._places = Places(kernel)
        self._lock = asyncio.Lock()

    async def mount(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Mount the disk in a place for volumes at a path; answer its sizes. Idempotent."""
        path, slot = _path(params), _slot(params)
        read_only = params.get("read_only") is True
        async with self._lock:
            device = await self._device(slot, _serial(params))
            there = self._mounted(path)
            if there is not None and there.device != self._number(device):
                raise AgentError(errors.CONFLICT, f"something else is mounted at {path}", path=path)
            if there is None:
                if params.get("repair") is True:
                    await self._repair(device)
                await in_own_thread(self._mount, device, path, read_only)
            if not read_only:
                await self._fill(device, path)
            return self._sizes(path)

    async def unmount(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Unmount a path and let go of the disk below it; answer the sizes until then. Idempotent."""
        path, slot = _path(params), _slot(params)
        async with self._lock:
            there = self._to_unmount(path, slot)
            sizes = self._sizes(path) if there is not None else {}
            if there is not None:
                await in_own_thread(self._unmount, path, there)
            await in_own_thread(self._places.let_go, slot)
            return {"was_mounted": there is not None, **sizes}

    async def grow(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Make the file system at a path as large as its disk is now; answer its sizes."""
        path, slot = _path(params), _slot(params)
        size = params.get("size_bytes")
        async with self._lock:
            self._need(path)
            device = await self._device(slot, _serial(params))
            await in_own_thread(self._places.ask_size, device)
            if isinstance(size, int):
                await self._until_large(device, size)
            await self._resize(device)
            return self._sizes(path)

    async def usage(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Answer the sizes of the file system at a path."""
        path = _path(params)
        self._need(path)
        return self._sizes(path)

    # ---- inside ----

    async def _device(self, slot: int, serial: str) -> Path:
        """Return the device file of a place; waits until the kernel has it, and knows how large it is."""
        places = self._places
        loop = asyncio.get_running_loop()
        end = loop.time() + _APPEAR_S
        with uevents() as news:
            while True:
                found = places.find(slot)
                if found is not None:
                    has = places.serial_of(found)
                    if has not in (None, serial):
                        raise AgentError(
                            errors.FAILED, f"the disk in place {slot} is {has!r}, not {serial!r}"
                        )
                    if has is not None or await in_own_thread(self._is_settled, found):
                        return found
                if loop.time() >= end:
                    if found is not None and await in_own_thread(places.reads_to_its_end, found):
                        return found  # its file system says what cannot be: what mounts it, tells
                    raise AgentError(
                        errors.FAILED,
                        f"no disk came in place {slot} within {_APPEAR_S:g} s",
                        hint=places.hint(),
                    )
                places.scan(slot)
                await news.next(_LOOK_S)

    def _is_settled(self, device: Path) -> bool:
        return self._kernel.is_claimed(self._number(device)) or self._places.is_settled(device)

    async def _until_large(self, device: Path, size_bytes: int) -> None:
        """Return when the kernel knows that a disk is that large."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _APPEAR_S
        with uevents() as news:
            while (has := self._places.size_of(device)) < size_bytes:
                if loop.time() >= end:
                    raise AgentError(
                        errors.FAILED, f"{device} has {has} bytes, and not {size_bytes}"
                    )
                await news.next(_LOOK_S)

    def _number(self, device: Path) -> tuple[int, int]:
        text = self._kernel.path(f"/sys/block/{device.name}/dev").read_text()
        major, _, minor = text.strip().partition(":")
        return int(major), int(minor)

    def _mounted(self, path: str) -> Volume | None:
        """Return the file system that is mounted at a path."""
        for found in volumes(self._kernel.mounts()):
            if path in found.places:
                return found
        return None

    def _to_unmount(self, path: str, slot: int) -> Volume | None:
        """Return the file system in a place if it is mounted at a path, and None if it is nowhere.

        Raises `AgentError` when its disk cannot go by unmounting that path: it would be torn from what is mounted.
        """
        there, device = self._mounted(path), self._places.find(slot)
        if device is None:
            return there
        number = self._number(device)
        if there is not None and there.device == number:
            if top_at(self._kernel.mounts(), path) != number:
                raise AgentError(
                    errors.CONFLICT,
                    f"something else is mounted over {path}",
                    hint="unmount that first",
                    path=path,
                )
            return there
        if self._kernel.is_claimed(number):
            mounted = [v for v in volumes(self._kernel.mounts()) if v.device == number]
            places = ", ".join(place for v in mounted for place in v.places)
            raise AgentError(
                errors.CONFLICT,
                f"the volume is not at {path} but {f'at {places}' if places else 'in use elsewhere'}",
                hint="unmount it there",
                path=path,
            )
        return None

    def _need(self, path: str) -> None:
        if self._mounted(path) is None:
            raise AgentError(errors.NOT_FOUND, f"no volume is mounted at {path}", path=path)

    def _mount(self, device: Path, path: str, read_only: bool) -> None:
        place = self._kernel.path(path)
        real, root = os.path.realpath(place), os.path.realpath(self._kernel.root)
        if real != os.path.join(root, path.lstrip("/")):
            # the kernel lists it by its real path, and by that alone it is found again
            raise AgentError(
                errors.INVALID,
                f"{path} is, or leads through, a symlink; a folder is wanted",
                hint=f"give the folder itself: {real}",
            )
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise errors.from_os(exc, f"make the folder {path}") from exc
        try:
            self._kernel.mount(device, place, read_only=read_only)
        except OSError as exc:
            raise AgentError(
                errors.CONFLICT if exc.errno == errno.EBUSY else errors.FAILED,
                f"the volume cannot be mounted at {path}: {exc.strerror or exc}",
                hint=_mount_hint(exc),
                path=path,
                errno=errors.name_of(exc),
            ) from exc

    def _unmount(self, path: str, there: Volume) -> None:
        place = self._kernel.path(path)
        try:
            self._kernel.unmount(place)
        except OSError as exc:
            if exc.errno == errno.EBUSY:
                raise self._busy(path, there) from exc
            raise errors.from_os(exc, f"unmount {path}") from exc
        if self._kernel.is_claimed(there.device):
            # still mounted in another namespace: taking the disk away would break what is in there
            node = _node(self._kernel, there)
            self._kernel.mount(node, place, read_only=not there.is_writable)
            raise self._busy(path, there)

    def _busy(self, path: str, there: Volume) -> AgentError:
        who = holders(there.device, self._kernel.path("/proc"))
        return AgentError(
            errors.CONFLICT,
            f"{path} is in use by {', '.join(who) or 'another mount namespace'}",
            hint="end these processes, or let them leave the folder",
            path=path,
            holders=", ".join(who),
        )

    async def _repair(self, device: Path) -> None:
        status, output = await self._programs.run(
            ["e2fsck", "-f", "-y", str(device)], timeout_s=_PROGRAM_S
        )
        if status not in _CORRECTED:
            raise AgentError(errors.FAILED, f"e2fsck ends with {status}: {output[-500:].strip()}")

    async def _fill(self, device: Path, path: str) -> None:
        """Use all of a disk that was made larger while it was away, and give a new one to the default user."""
        place = self._kernel.path(path)
        blocks, block_bytes = await in_own_thread(blocks_of, device)
        if (blocks + 1) * block_bytes <= self._places.size_of(device):
            await self._resize(device)
        if self._image.default_user is not None:
            user = find_user(self._image.default_user)
            await in_own_thread(_give_new, place, user.uid, user.gid)

    async def _resize(self, device: Path) -> None:
        status, output = await self._programs.run(["resize2fs", str(device)], timeout_s=_PROGRAM_S)
        if status != 0:
            raise AgentError(errors.FAILED, f"resize2fs: {output[-500:].strip()}")

    def _sizes(self, path: str) -> dict[str, Any]:
        try:
            found = os.statvfs(self._kernel.path(path))
        except OSError as exc:
            raise errors.from_os(exc, path) from exc
        return {
            "total_bytes": found.f_blocks * found.f_frsize,
            "used_bytes": (found.f_blocks - found.f_bfree) * found.f_frsize,
        }


def _mount_hint(exc: OSError) -> str:
    if exc.errno == errno.EROFS:
        return "its journal is to be replayed: attach it read-write once"
    if exc.errno == errno.EBUSY:
        return "something is mounted there already"
    return "let it be checked: attach it with repair (torpor volume attach … --repair); a clone first is safer"


def _give_new(place: Path, uid: int, gid: int) -> None:
    """Let a user own the root of a file system that nobody has used yet."""
    found = place.stat()
    if uid and found.st_uid == 0 and {entry.name for entry in place.iterdir()} <= {"lost+found"}:
        os.chown(place, uid, gid)


def _node(kernel: Kernel, there: Volume) -> Path:
    link = kernel.path(f"/sys/dev/block/{there.device[0]}:{there.device[1]}")
    return kernel.path("/dev") / os.path.basename(os.readlink(link))


def _path(params: dict[str, Any]) -> str:
    path = checked(params)
    if os.path.normpath(path) != path or path.startswith("//"):
        raise AgentError(errors.INVALID, f"{path!r} is not a plain path")
    if path in _RESERVED or path.startswith(("/proc/", "/sys/", "/dev/")):
        raise AgentError(errors.INVALID, f"nothing can be mounted at {path}")
    return path


def _slot(params: dict[str, Any]) -> int:
    slot = params.get("slot")
    if not isinstance(slot, int) or slot not in _SLOTS:
        raise AgentError(errors.INVALID, f"{slot!r} is no place for a volume")
    return slot


def _serial(params: dict[str, Any]) -> str:
    serial = params.get("serial")
    if not isinstance(serial, str) or not _SERIAL.fullmatch(serial):
        raise AgentError(errors.INVALID, f"{str(serial)[:40]!r} is no serial")
    return serial
