"""Units in numbers and in words."""

from __future__ import annotations

import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(|s|m|min|h|d)")


def format_bytes(size_bytes: float) -> str:
    """Return a size as people read it: `0 B`, `1.5 MiB`, `12 GiB`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def parse_size(text: str) -> int:
    """Return the bytes that `1g`, `512m`, `1.5GiB` or `4096` mean. Raises `ValueError`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size; such as 512m, 1g or 1.5g is wanted")
    unit = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1 << 40}[found[2].lower()]
    return int(float(found[1]) * unit)


def parse_seconds(text: str) -> float:
    """Return the seconds that `90`, `90s`, `10m`, `2h` or `1d` mean. Raises `ValueError`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no duration; such as 90, 90s, 10m, 2h or 1d is wanted")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[found[2]]


def format_seconds(seconds: float) -> str:
    """Return a duration as people read it: `12 ms`, `3.4 s`, `5 min 2 s`, `2 h 10 min`, `3 d 4 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for big, small, big_s, small_s in (
        ("d", "h", 86400, 3600),
        ("h", "min", 3600, 60),
        ("min", "s", 60, 1),
    ):
        if whole >= big_s:
            return f"{whole // big_s} {big} {whole % big_s // small_s} {small}"
    return f"{whole} s"
