"""The project's tree as the emulated host gets it: whole when it boots, and later what has changed since."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.rig.compiled import compiled
from tests.rig.parts import REPOSITORY

Marks = dict[str, list[int]]
"""Size and time of change of each file, by name."""


_PLACES = ("pyproject.toml", "src", "tests")


def look() -> Marks:
    """Return what the tree is like now."""
    marks: Marks = {}
    for place in _PLACES:
        top = REPOSITORY / place
        for path in sorted(top.rglob("*")) if top.is_dir() else (top,):
            if path.is_file() and "__pycache__" not in path.parts:
                state = path.stat()
                marks[str(path.relative_to(REPOSITORY))] = [state.st_size, state.st_mtime_ns]
    return marks


def pack(files: Mapping[str, Path], *, mode: str = "w:gz") -> bytes:
    """Return a tar of these files by the names that they have in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for name, path in files.items():
            tar.add(path, name, recursive=False)
    return buffer.getvalue()


def files(names: Iterable[str]) -> dict[str, Path]:
    """Return where the tree's files are, and their compiled files, by the names in the tree."""
    listed = list(names)
    return {name: REPOSITORY / name for name in listed} | dict(compiled(listed))


def changes(before: Marks, now: Marks) -> tuple[list[str], list[str]]:
    """Return the names that are new or changed, and those that are gone."""
    changed = [name for name, mark in now.items() if before.get(name) != mark]
    return changed, [name for name in before if name not in now]


def save(marks: Marks, file: Path) -> None:
    """Remember what a host has."""
    file.write_text(json.dumps(marks))


def load(file: Path) -> Marks:
    """Return what a host has."""
    return dict(json.loads(file.read_text()))
