"""Reads the form of a template build as it comes: small fields into memory, files onto the disk."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError

from torpor.base.fsio import free_bytes, remove_tree
from torpor.base.units import GIB, format_bytes
from torpor.errors import InsufficientResources, InvalidRequest, LimitExceeded

FIELDS_MOST_BYTES = 1 << 20
"""Of all fields but the root file system together."""
ROOTFS_MOST_BYTES = 64 * GIB
CONTEXT_MOST_BYTES = 64 << 20
"""Of what a client sends beside a Dockerfile, together."""
RESERVE_BYTES = GIB
"""Free disk that an upload leaves."""

_CHUNK_BYTES = 1 << 20
_PARTS_MOST = 10_000


@dataclass
class Form:
    """What was sent."""

    fields: dict[str, str] = field(default_factory=dict)
    rootfs_bytes: int | None = None
    """Size of the root file system; None: there was none."""
    context_bytes: int = 0
    """Of the other files together."""


async def read_form(
    content_type: str, body: AsyncIterator[bytes], rootfs: Path, context: Path
) -> Form:
    """Return the form in `body`; its part `rootfs` is in the file `rootfs`, other files below the folder `context`.

    Neither is there before; on failure neither is after it.

    Raises:
        InvalidRequest: it is no form.
        LimitExceeded: it is larger than a form may be.
        InsufficientResources: the disk has no room for it.
    """
    kind, boundary = _kind(content_type)
    if kind == "application/x-www-form-urlencoded":
        return Form(_fields(await _all(body)))
    if kind != "multipart/form-data" or not boundary:
        raise InvalidRequest(
            f"the request is {kind[:80] or 'of no type'}; a form is wanted",
            hint="send name and rootfs (a tar) as multipart/form-data",
        )
    reader = _Reader(boundary, rootfs, context)
    try:
        held = bytearray()
        async for chunk in body:
            held += chunk
            if len(held) >= _CHUNK_BYTES:
                await asyncio.to_thread(reader.feed, bytes(held))
                held.clear()
        await asyncio.to_thread(reader.feed, bytes(held))
        await asyncio.to_thread(reader.end)
    except BaseException:
        await asyncio.to_thread(reader.drop)
        raise
    return reader.form


def _kind(content_type: str) -> tuple[str, str]:
    message = Message()
    message["content-type"] = content_type or "none/none"
    boundary = message.get_param("boundary", "")
    return message.get_content_type(), boundary if isinstance(boundary, str) else ""


async def _all(body: AsyncIterator[bytes]) -> bytes:
    found = bytearray()
    async for chunk in body:
        found += chunk
        if len(found) > FIELDS_MOST_BYTES:
            raise _too_large("the form", FIELDS_MOST_BYTES)
    return bytes(found)


def _fields(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=100))
    except (UnicodeDecodeError, ValueError) as exc:
        raise InvalidRequest("the request is not a form in UTF-8") from exc


def _too_large(what: str, limit: int) -> LimitExceeded:
    return LimitExceeded(f"{what} is over {format_bytes(limit)}", limit_bytes=limit)


class _Reader:
    """Takes a multipart body in pieces. All methods block."""

    def __init__(self, boundary: str, rootfs: Path, context: Path) -> None:
        self.form = Form()
        self._path = rootfs
        self._file: BinaryIO | None = None
        self._context = context
        self._beside: BinaryIO | None = None
        self._small = 0
        self._parts = 0
        self._is_whole = False
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._name = ""
        self._is_file = False
        self._value = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, a, b: self._hold(self._header[0], data[a:b]),
                "on_header_value": lambda data, a, b: self._hold(self._header[1], data[a:b]),
                "on_header_end": self._header_ended,
                "on_part_data": lambda data, a, b: self._data(data[a:b]),
                "on_part_end": self._part_ended,
                "on_end": self._ended,
            },
        )

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        try:
            self._parser.write(data)
        except MultipartParseError as exc:
            raise InvalidRequest(f"the request is not multipart/form-data: {exc}") from exc
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._no_room() from exc
            raise

    def end(self) -> None:
        """Take the end of the body. Raises `InvalidRequest` when parts are missing."""
        if not self._is_whole:
            raise InvalidRequest("the request ends before its form does", hint="send it again")

    def drop(self) -> None:
        """Remove what was written."""
        if self._file is not None:
            self._file.close()
        if self._beside is not None:
            self._beside.close()
        self._path.unlink(missing_ok=True)
        remove_tree(self._context)

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _PARTS_MOST:
            raise LimitExceeded(f"the form has over {_PARTS_MOST} parts")
        self._name, self._is_file = "", False
        self._value.clear()

    def _hold(self, into: bytearray, data: bytes) -> None:
        self._small += len(data)
        if self._small > FIELDS_MOST_BYTES:
            raise _too_large("the form without its files", FIELDS_MOST_BYTES)
        into += data

    def _header_ended(self) -> None:
        name, value = (bytes(part).decode("utf-8", "replace") for part in self._header)
        for part in self._header:
            part.clear()
        if name.lower() == "content-disposition":
            message = Message()
            message["content-disposition"] = value
            found = message.get_param("name", "", header="content-disposition")
            self._name = found if isinstance(found, str) else ""
            self._is_file = message.get_filename() is not None
            if self._name == "rootfs" and self._is_file:
                self._open()
            elif self._is_file:
                self._open_beside()

    def _open(self) -> None:
        if self._file is not None:
            raise InvalidRequest("the form has more than one rootfs")
        self._file = self._path.open("xb")
        self.form.rootfs_bytes = 0

    def _open_beside(self) -> None:
        """Open a file of a Dockerfile's context; its part is called as the file is."""
        parts = self._name.split("/")
        if any(part in ("", ".", "..") or len(part.encode()) > 255 for part in parts):
            raise InvalidRequest(f"the form has the file {self._name[:200]!r}, which leads out")
        if "\0" in self._name or len(self._name) > 2000:
            raise InvalidRequest("the form has a file whose name cannot be")
        path = self._context.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._beside = path.open("xb")
        except (FileExistsError, NotADirectoryError) as exc:
            raise InvalidRequest(f"the form has the file {self._name[:200]!r} twice") from exc

    def _data(self, data: bytes) -> None:
        if self._name == "rootfs" and self._file is not None and self._is_file:
            self._write(self._file, data)
        elif self._is_file:
            self.form.context_bytes += len(data)
            if self.form.context_bytes > CONTEXT_MOST_BYTES:
                raise _too_large("what is beside the root file system", CONTEXT_MOST_BYTES)
            if self._beside is not None:
                self._beside.write(data)
        else:
            self._hold(self._value, data)

    def _write(self, file: BinaryIO, data: bytes) -> None:
        before = self.form.rootfs_bytes or 0
        self.form.rootfs_bytes = after = before + len(data)
        if after > ROOTFS_MOST_BYTES:
            raise _too_large("rootfs", ROOTFS_MOST_BYTES)
        if before >> 26 != after >> 26 and free_bytes(self._path.parent) < RESERVE_BYTES:
            raise self._no_room()
        file.write(data)

    def _part_ended(self) -> None:
        if self._is_file:
            if self._name == "rootfs" and self._file is not None:
                self._file.close()
            elif self._beside is not None:
                self._beside.close()
                self._beside = None
        elif self._name:
            self.form.fields[self._name] = bytes(self._value).decode("utf-8", "replace")

    def _ended(self) -> None:
        self._is_whole = True

    def _no_room(self) -> InsufficientResources:
        return InsufficientResources(
            f"{self._path.parent} has no room for the root file system; what came of it was removed",
            hint="free some space, or let TORPOR_HOME name a larger disk",
        )
