"""Finding SQLite databases by their first bytes, whatever they are called. The walk has an end."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic, iglob

from torpor_guest.keeping import KeeperFailed, plain

ENTRIES_MOST = 500_000
SKIPPED = frozenset({b".git", b"node_modules", b"__pycache__"})
"""Folders that hold what programs are made of, and much of it."""
_MAGIC = b"SQLite format 3\0"
_PAGE_LEAST = 512
_LOOK_AT_CLOCK = 256


@dataclass(frozen=True)
class Found:
    """A file that is a database."""

    path: bytes
    number: tuple[int, int]
    """Device and inode."""

    @property
    def shown(self) -> str:
        """Its name for people."""
        return plain(os.fsdecode(self.path), 200)


def find(
    paths: list[bytes], roots: list[bytes], exclude: list[str], deadline: float
) -> list[Found]:
    """Return the databases that `paths` are or hold, or without paths those below `roots`.

    A path may be a pattern; what fits it and is no database is passed over, and it is no failure if nothing fits.

    Raises:
        KeeperFailed: a path is not there or no database, or there is too much to look at.
    """
    walk = _Walk(exclude, deadline)
    for path in paths:
        if has_magic(path):
            walk.fitting(os.path.abspath(path))
        else:
            walk.named(os.path.abspath(path))
    if not paths:
        for root in roots:
            if os.path.isdir(root):
                walk.below(os.path.realpath(root))
    return sorted(walk.found.values(), key=lambda found: found.path)


class _Walk:
    def __init__(self, exclude: list[str], deadline: float) -> None:
        self.found: dict[tuple[int, int], Found] = {}
        self._exclude = exclude
        self._deadline = deadline
        self._entries = 0
        self._seen: set[tuple[int, int]] = set()

    def named(self, path: bytes) -> None:
        try:
            what = os.stat(path)
        except OSError as exc:
            raise KeeperFailed(f"{_shown(path)}: {exc.strerror}") from exc
        if stat.S_ISDIR(what.st_mode):
            self.below(os.path.realpath(path))
            return
        path = os.path.realpath(path)
        if not stat.S_ISREG(what.st_mode) or (what.st_size and not _is_database(path)):
            raise KeeperFailed(f"{_shown(path)} is no SQLite database")
        self._add(path, what)

    def fitting(self, pattern: bytes) -> None:
        for path in iglob(pattern):
            self._look()
            try:
                what = os.stat(path)
            except OSError:
                continue
            path = os.path.realpath(path)
            if stat.S_ISDIR(what.st_mode):
                self.below(path)
            elif self._is_candidate(path, what) and _is_database(path):
                self._add(path, what)

    def below(self, root: bytes) -> None:
        device = os.stat(root).st_dev
        pending = [root]
        while pending:
            folder = pending.pop()
            number = os.stat(folder)
            if (number.st_dev, number.st_ino) in self._seen or self._is_excluded(folder):
                continue
            self._seen.add((number.st_dev, number.st_ino))
            for entry in self._entries_of(folder):
                try:
                    what = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISDIR(what.st_mode):
                    if what.st_dev == device and entry.name not in SKIPPED:
                        pending.append(entry.path)
                elif self._is_candidate(entry.path, what) and _is_database(entry.path):
                    self._add(entry.path, what)

    def _entries_of(self, folder: bytes) -> Iterator[os.DirEntry[bytes]]:
        try:
            listing = os.scandir(folder)
        except OSError:  # gone, or not ours to read
            return
        with listing:
            for entry in listing:
                self._look(folder)
                yield entry

    def _look(self, folder: bytes = b"a pattern") -> None:
        """Count a name, and end a search that is too long."""
        self._entries += 1
        if self._entries > ENTRIES_MOST:
            raise KeeperFailed(
                f"there are more than {ENTRIES_MOST} files to look at: name the databases in `paths`"
            )
        if self._entries % _LOOK_AT_CLOCK == 0 and time.monotonic() > self._deadline:
            raise KeeperFailed(
                f"after {self._entries} files the search was not at its end (in {_shown(folder)}):"
                " name the databases in `paths`, or give it more time"
            )

    def _is_candidate(self, path: bytes, what: os.stat_result) -> bool:
        return (
            stat.S_ISREG(what.st_mode)
            and what.st_size >= _PAGE_LEAST
            and what.st_size % _PAGE_LEAST == 0
            and not self._is_excluded(path)
        )

    def _is_excluded(self, path: bytes) -> bool:
        text = os.fsdecode(path)
        return any(fnmatchcase(text, pattern) for pattern in self._exclude)

    def _add(self, path: bytes, what: os.stat_result) -> None:
        number = (what.st_dev, what.st_ino)
        self.found.setdefault(number, Found(path, number))


def _is_database(path: bytes) -> bool:
    """Return whether the file begins as a database does. It is not opened through a link and never waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(fd, len(_MAGIC)) == _MAGIC
    except OSError:
        return False
    finally:
        os.close(fd)


def _shown(path: bytes) -> str:
    return plain(os.fsdecode(path), 200)
