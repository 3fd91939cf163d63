"""Copying files in and out of a volume through a machine: the host's kernel never mounts what a guest wrote.

A sandbox that has the volume is used as it is. Otherwise one is made for the copy, without a network, and deleted;
if we are killed, its TTL ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from torpor.errors import InvalidRequest, NotFound, TorporError
from torpor.model import SandboxState
from torpor.sdk.results import Transfer
from torpor.sdk.temporary import Temporary

if TYPE_CHECKING:
    from torpor.sdk.files import AsyncFilesystem
    from torpor.sdk.sandbox import AsyncSandbox
    from torpor.sdk.volumes import AsyncVolume

_PLACE = "/volume"
_TTL_SECONDS = 3600
_ALIVE = (SandboxState.RUNNING, SandboxState.HIBERNATED)


async def copy_in(volume: AsyncVolume, local: Path, remote: str, *, user: str | None) -> Transfer:
    """See `AsyncVolume.copy_in`."""
    path = _checked(remote)
    if not await asyncio.to_thread(os.path.lexists, local):  # or a machine is made for nothing
        raise NotFound(f"cannot read {local}: there is no such file", path=local)
    async with _mounted(volume, to_write=True) as (files, root):
        place = posixpath.join(root, path)
        try:
            is_folder = (await files.stat(place.rstrip("/") or "/")).kind == "dir"
        except NotFound:
            is_folder = remote.endswith("/")
        if is_folder:
            name = (await asyncio.to_thread(local.resolve)).name
            place = posixpath.join(place, name)
        return await files.upload(local, place, user=user or "root")


async def copy_out(volume: AsyncVolume, remote: str, local: Path) -> Transfer:
    """See `AsyncVolume.copy_out`."""
    path = _checked(remote)
    async with _mounted(volume, to_write=False) as (files, root):
        place = posixpath.join(root, path).rstrip("/")
        is_folder = await asyncio.to_thread(local.is_dir)
        target = local / posixpath.basename(path.rstrip("/")) if is_folder else local
        try:
            return await files.download(place, target)
        except NotFound as exc:
            raise NotFound(
                f"there is no {remote} in volume {volume.name}", volume=volume.name, path=remote
            ) from exc


def _checked(remote: str) -> str:
    """Return a path in the volume, relative to its root. Raises `InvalidRequest`."""
    if not remote.startswith("/") or ".." in remote.split("/"):
        raise InvalidRequest(
            f"{remote!r} is no path in a volume", hint="give an absolute path, such as /models"
        )
    return remote.lstrip("/")


@contextlib.asynccontextmanager
async def _mounted(
    volume: AsyncVolume, *, to_write: bool
) -> AsyncIterator[tuple[AsyncFilesystem, str]]:
    """Enter with the files of a sandbox that has the volume, and where it is."""
    from torpor.sdk.sandbox import AsyncSandbox

    info = await volume.refresh()
    for holder in info.holders:
        if holder.read_only and to_write:
            continue
        try:
            sandbox = await AsyncSandbox.get(holder.sandbox_id, client=volume.client)
        except NotFound:
            continue
        if sandbox.info.state in _ALIVE:
            yield sandbox.filesystem, holder.path
            return
    # read-only it can be mounted only if its journal needs no replay
    read_only = not to_write and info.clean

    async def make() -> list[AsyncSandbox | TorporError]:
        return [
            await AsyncSandbox.create(
                await _template(volume),
                network="none",
                ttl_seconds=_TTL_SECONDS,
                metadata={"made_for": f"copying files of volume {info.name}"},
                volumes={_PLACE: {"volume": info.id, "read_only": read_only}},
                client=volume.client,
            )
        ]

    async with Temporary() as temporary:
        (made,) = await temporary.make(make())
        if isinstance(made, TorporError):
            raise made
        try:
            yield made.filesystem, _PLACE
        finally:
            await made.detach_volume(_PLACE)  # unmounted, so that it can be read by many next


async def _template(volume: AsyncVolume) -> str:
    from torpor.sdk.templates import AsyncTemplates

    found = [template.name for template in await AsyncTemplates.list(client=volume.client)]
    return "base" if "base" in found or not found else found[0]
