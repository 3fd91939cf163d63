"""Methods on files and folders that are answered at once or item by item."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

from torpor_guest import errors, protocol
from torpor_guest.errors import AgentError
from torpor_guest.paths import checked, describe, make_dirs, number
from torpor_guest.stream import Stream
from torpor_guest.threads import in_thread
from torpor_guest.users import forget_names

MAX_ENTRIES = 100_000
_BATCH = 256


async def stat_path(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    """Say what a path is."""
    return {"file": describe(checked(params))}


async def list_dir(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    """Send the names in a folder, sorted."""
    path = checked(params)
    forget_names()
    names = await in_thread(_names, path)
    for start in range(0, len(names), _BATCH):
        batch = await in_thread(_describe_all, path, names[start : start + _BATCH])
        await send_items(stream, batch)
    return {}


async def walk(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    """Send everything below a folder, parents before children."""
    path = checked(params)
    max_depth = number(params, "max_depth", None)
    forget_names()
    entries = _walk(path, 1 << 30 if max_depth is None else max_depth)
    while True:
        batch = await in_thread(_next_batch, entries)
        if not batch:
            return {}
        await send_items(stream, batch)


async def mkdir(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    """Make a folder."""
    path = checked(params)
    mode = number(params, "mode", 0o755)
    assert mode is not None
    if params.get("parents"):
        try:
            make_dirs(path, mode & 0o7777, None)
        except OSError as exc:
            raise errors.from_os(exc, f"make folder {path}") from exc
    else:
        try:
            os.mkdir(path)
            os.chmod(path, mode & 0o7777)
        except OSError as exc:
            raise errors.from_os(exc, f"make folder {path}") from exc
    return {"file": describe(path)}


async def remove(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    """Remove a name, and with `recursive` all below it."""
    path = checked(params)
    if os.path.realpath(os.path.dirname(path.rstrip("/") or "/")) == path.rstrip("/") or (
        os.path.ismount(path) and not os.path.islink(path)
    ):
        raise AgentError(errors.INVALID, f"{path} is a mount point and is not removed")
    try:
        await in_thread(_remove, path, bool(params.get("recursive")))
    except OSError as exc:
        raise errors.from_os(exc, f"remove {path}") from exc
    return {}


async def rename(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    """Rename within one file system."""
    source, target = checked(params, "source"), checked(params, "target")
    try:
        os.rename(source, target)
    except OSError as exc:
        raise errors.from_os(exc, f"rename {source} to {target}") from exc
    return {"file": describe(target)}


async def send_items(stream: Stream, items: list[dict[str, Any]]) -> None:
    """Send JSON values, one a line."""
    lines = b"".join(protocol.pack_json(item) + b"\n" for item in items)
    await stream.send(protocol.CHANNEL_ITEMS, lines)


def _names(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            names = []
            for entry in entries:
                names.append(entry.name)
                if len(names) > MAX_ENTRIES:
                    raise AgentError(
                        errors.LIMIT,
                        f"{path} has more than {MAX_ENTRIES} names",
                        hint="walk it instead",
                    )
    except OSError as exc:
        raise errors.from_os(exc, f"list {path}") from exc
    names.sort()
    return names


def _describe_all(folder: str, names: list[str]) -> list[dict[str, Any]]:
    found = []
    for name in names:
        try:
            found.append(describe(os.path.join(folder, name)))
        except AgentError:
            continue  # gone since it was listed
    return found


def _walk(path: str, max_depth: int) -> Iterator[dict[str, Any]]:
    """Yield everything below `path`; a folder that is gone or closed to us below it is passed over."""
    pending: list[tuple[str, int]] = [(path, 1)]
    while pending:
        folder, depth = pending.pop()
        try:
            names = sorted(os.listdir(folder))
        except OSError as exc:
            if folder == path:
                raise errors.from_os(exc, f"walk {path}") from exc
            continue
        deeper: list[tuple[str, int]] = []
        for entry in _describe_all(folder, names) if depth <= max_depth else ():
            yield entry
            if entry["kind"] == "dir":
                deeper.append((entry["path"], depth + 1))
        pending += reversed(deeper)


def _next_batch(entries: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    batch = []
    for entry in entries:
        batch.append(entry)
        if len(batch) == _BATCH:
            break
    return batch


def _remove(path: str, recursive: bool) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        if recursive:
            shutil.rmtree(path)
        else:
            os.rmdir(path)
    else:
        os.unlink(path)
