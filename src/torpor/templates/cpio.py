"""Write cpio archives in the `newc` format that the kernel unpacks as an initial root file system.

Times and inode numbers are fixed, so equal content gives equal bytes.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass

_TRAILER = "TRAILER!!!"


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in the archive: a folder, a file or a symlink (then `data` is its target)."""

    name: str
    """Path without a leading slash."""
    mode: int
    """With the type bits, such as `stat.S_IFREG | 0o644`."""
    data: bytes = b""


def folder(name: str) -> Entry:
    """Return a folder."""
    return Entry(name, stat.S_IFDIR | 0o755)


def file(name: str, data: bytes, *, mode: int = 0o644) -> Entry:
    """Return a regular file."""
    return Entry(name, stat.S_IFREG | mode, data)


def archive(entries: list[Entry]) -> bytes:
    """Return the archive; a folder must come before what is in it."""
    out = bytearray()
    for inode, entry in enumerate(entries, start=1):
        _add(out, inode, entry)
    _add(out, 0, Entry(_TRAILER, 0))
    out += bytes(-len(out) % 512)
    return bytes(out)


def _add(out: bytearray, inode: int, entry: Entry) -> None:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
    out += b"070701" + b"".join(b"%08X" % field for field in fields)
    out += name
    out += bytes(-len(out) % 4)
    out += entry.data
    out += bytes(-len(out) % 4)
