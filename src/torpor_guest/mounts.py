"""Which file systems can be frozen, and in which order."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_LOOP_MAJOR = 7
_ANONYMOUS = ("btrfs", "bcachefs")
"""On block devices, though the kernel gives them a device number of their own."""
_NUMBER = re.compile(r"[0-9]{1,10}")
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Volume(NamedTuple):
    """One file system on a block device, wherever it is mounted."""

    device: tuple[int, int]
    kind: str
    places: tuple[str, ...]
    is_writable: bool


def volumes(mountinfo: str) -> list[Volume]:
    """Return the file systems on block devices, once each, the root's last.

    A file system that lies in a file of another comes before that one: what it still has to write goes there.
    """
    found: dict[tuple[int, int], Volume] = {}
    for line in mountinfo.splitlines():
        volume = _volume(line)
        if volume:
            seen = found.get(volume.device)
            found[volume.device] = (
                seen._replace(places=(*seen.places, *volume.places)) if seen else volume
            )
    newest_first = reversed(list(found.values()))
    return sorted(newest_first, key=lambda volume: (-_depth(volume), "/" in volume.places))


def top_at(mountinfo: str, path: str) -> tuple[int, int] | None:
    """Return the device of what is seen at a path where something is mounted: of mounts there, the last."""
    found = None
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 5 and _place(fields[4]) == path:
            major, _, minor = fields[2].partition(":")
            if _NUMBER.fullmatch(major) and _NUMBER.fullmatch(minor):
                found = int(major), int(minor)
    return found


def _place(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def _volume(line: str) -> Volume | None:
    left, _, right = line.partition(" - ")
    before, after = left.split(" "), right.split(" ")
    if len(before) < 6 or len(after) < 3:
        return None
    major, _, minor = before[2].partition(":")
    if not (_NUMBER.fullmatch(major) and _NUMBER.fullmatch(minor)):
        return None
    kind, source, options = after[0], after[1], after[2]
    if major == "0" and not (kind in _ANONYMOUS and source.startswith("/dev/")):
        return None
    return Volume((int(major), int(minor)), kind, (_place(before[4]),), "rw" in options.split(","))


def _depth(volume: Volume) -> int:
    """Return how many file systems lie below `volume`."""
    depth, device = 0, _below(volume.device)
    while device and depth < 8:
        depth += 1
        device = _below(device)
    return depth


def _below(device: tuple[int, int]) -> tuple[int, int] | None:
    """Return the device of the file system that holds the file that `device` is; None for a real disk."""
    if device[0] != _LOOP_MAJOR:
        return None
    try:
        file = Path(f"/sys/dev/block/{device[0]}:{device[1]}/loop/backing_file").read_text()
        number = os.stat(file.rstrip("\n")).st_dev
    except OSError:
        return None
    return os.major(number), os.minor(number)


def open_volume(volume: Volume) -> tuple[int, str]:
    """Return a descriptor on the file system and the place it is at; at others it may be hidden.

    Raises:
        OSError: it cannot be reached anywhere.
    """
    failure = OSError(2, "No such file or directory")
    for place in volume.places:
        try:
            fd = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as exc:
            failure = exc
            continue
        number = os.fstat(fd).st_dev
        if volume.kind in _ANONYMOUS or (os.major(number), os.minor(number)) == volume.device:
            return fd, place
        os.close(fd)
    raise failure
