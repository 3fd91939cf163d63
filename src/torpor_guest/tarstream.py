"""Reading a tar archive as a stream, without I/O: for archives that nobody vouches for. Used by both ends.

It knows the forms that GNU tar, bsdtar and Python write (ustar, GNU long names, pax) and refuses what a tree of
files does not need: devices, FIFOs, sparse files, absolute names and names with `..` in them. Whatever is fed,
it holds at most one header and one long name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple, Union

BLOCK = 512
_MAX_LONG_NAME = 64 << 10
_MAX_PAX = 1 << 20
_KINDS = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hardlink",
    b"2": "symlink",
    b"5": "dir",
}
_EXTENSIONS = {b"L": _MAX_LONG_NAME, b"K": _MAX_LONG_NAME, b"x": _MAX_PAX, b"g": _MAX_PAX}


class BadTar(Exception):  # the message says all
    """Raised when an archive is damaged, cut short, or holds what is not unpacked."""


class Member(NamedTuple):
    """One entry of an archive; `name` is relative and clean, empty for the folder itself."""

    name: str
    kind: str
    """file, dir, symlink or hardlink."""
    size: int
    mode: int
    mtime: float
    target: str
    """Of a symlink, as it is; of a hardlink, a clean name."""


Event = Union[Member, bytes]  # noqa: UP007  # evaluated in Python 3.9


class TarReader:
    """Turns the bytes of an archive, split anywhere, into members and the bytes of files."""

    def __init__(self) -> None:
        self.is_finished = False
        """Whether the end mark was read; what follows it is ignored."""
        self._buffer = bytearray()
        self._content_left = 0
        self._padding_left = 0
        self._extension = b""
        self._extension_size = 0
        self._long: dict[str, str] = {}
        self._global: dict[str, str] = {}

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield each member, and after a file its bytes in pieces.

        Raises:
            BadTar: the archive cannot be unpacked from here on.
        """
        start = 0
        while start < len(data) and not self.is_finished:
            if self._content_left:
                piece = data[start : start + self._content_left]
                start += len(piece)
                self._content_left -= len(piece)
                yield piece
            elif self._padding_left:
                skipped = min(self._padding_left, len(data) - start)
                start += skipped
                self._padding_left -= skipped
            else:
                wanted = (self._extension_size or BLOCK) - len(self._buffer)
                piece = data[start : start + wanted]
                self._buffer += piece
                start += len(piece)
                member = self._complete() if len(piece) == wanted else None
                if member:
                    yield member

    def finish(self) -> None:
        """Raise `BadTar` unless the archive had its end mark."""
        if not self.is_finished:
            raise BadTar("the archive ends too early")

    def _complete(self) -> Member | None:
        block = bytes(self._buffer)
        self._buffer.clear()
        if self._extension_size:
            self._take_extension(block)
            return None
        if not block.strip(b"\0"):
            self.is_finished = True
            return None
        return self._take_header(block)

    def _take_header(self, block: bytes) -> Member | None:
        _check_sum(block)
        kind = block[156:157]
        size = _number(block[124:136])
        if kind in _EXTENSIONS:
            if not 0 < size <= _EXTENSIONS[kind]:
                raise BadTar(f"an extended header has {size} bytes")
            self._extension = kind
            self._extension_size = -(-size // BLOCK) * BLOCK
            self._long["size of extension"] = str(size)
            return None
        name, target = _text(block[0:100]), _text(block[157:257])
        if block[257:263] == b"ustar\0" and block[345:500].strip(b"\0"):
            name = f"{_text(block[345:500])}/{name}"
        said = {**self._global, **self._long}
        self._long = {}
        name, target = said.get("path", name), said.get("linkpath", target)
        what = _KINDS.get(kind)
        if what is None:
            raise BadTar(f"{name!r} is of type {kind!r}, which is not unpacked")
        if "GNU.sparse.major" in said or "GNU.sparse.map" in said:
            raise BadTar(f"{name!r} is a sparse file, which is not unpacked")
        if what == "file" and name.endswith("/"):
            what = "dir"
        size = (_decimal(said["size"]) if "size" in said else size) if what == "file" else 0
        self._content_left, self._padding_left = size, -size % BLOCK
        return Member(
            name=clean_name(name),
            kind=what,
            size=size,
            mode=_number(block[100:108]) & 0o7777,
            mtime=_seconds(said.get("mtime")) or float(_number(block[136:148])),
            target=clean_name(target) if what == "hardlink" else target,
        )

    def _take_extension(self, block: bytes) -> None:
        data = block[: int(self._long.pop("size of extension"))]
        kind, self._extension, self._extension_size = self._extension, b"", 0
        if kind == b"L":
            self._long["path"] = _text(data)
        elif kind == b"K":
            self._long["linkpath"] = _text(data)
        else:
            (self._global if kind == b"g" else self._long).update(_pax(data))


def clean_name(name: str) -> str:
    """Return a member's name without what means nothing; empty for the folder itself.

    Raises:
        BadTar: it is absolute, or leads out of the folder, or can be no name.
    """
    if name.startswith("/") or "\0" in name:
        raise BadTar(f"the name {name[:200]!r} is not one inside a folder")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadTar(f"the name {name[:200]!r} leads out of the folder")
    if any(len(os.fsencode(part)) > 255 for part in parts) or len(name) > 4096:
        raise BadTar(f"the name {name[:200]!r}… is too long")
    return "/".join(parts)


def _text(field: bytes) -> str:
    return os.fsdecode(field.split(b"\0", 1)[0])


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU: base 256
        value = int.from_bytes(field[1:], "big")
        if field[0] != 0x80 or value >= 1 << 62:
            raise BadTar("a number in a header is out of range")
        return value
    text = field.split(b"\0", 1)[0].strip()
    try:
        value = int(text or b"0", 8)
    except ValueError:
        raise BadTar("a number in a header is none") from None
    if value < 0:
        raise BadTar("a number in a header is out of range")
    return value


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadTar("a size in an extended header is none")
    return int(text)


def _seconds(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _check_sum(block: bytes) -> None:
    said = _number(block[148:156])
    if said != sum(block[:148]) + 8 * 32 + sum(block[156:]):
        raise BadTar("a header is damaged, or this is no tar archive")


def _pax(data: bytes) -> dict[str, str]:
    """Return the records of a pax header: `LENGTH KEY=VALUE\\n` each."""
    records: dict[str, str] = {}
    start = 0
    while start < len(data):
        space = data.find(b" ", start, start + 20)
        length = data[start:space]
        end = start + int(length) if space > 0 and length.isdigit() else 0
        if not start < end <= len(data) or end <= space:
            raise BadTar("an extended header is damaged")
        key, _, value = data[space + 1 : end - 1].partition(b"=")
        records[os.fsdecode(key)] = os.fsdecode(value)
        start = end
    return records
