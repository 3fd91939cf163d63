"""Finding paths by pattern, and all below a folder, without ever following a symlink.

Folders are opened one name at a time with O_NOFOLLOW and held while they are read, so that a folder that is
replaced by a symlink meanwhile is not walked into. The host's patterns begin at the machine's root; `root` is put
before them, so that a tree elsewhere can stand for a machine.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from torpor_guest.inventory.budget import Budget, Section

DEPTH_MOST = 24
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Found(NamedTuple):
    """A path that was found; `folder` is open until the next one is asked for."""

    path: str
    name: str
    stat: os.stat_result
    folder: int

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.stat.st_mode)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symlink."""
        return stat.S_ISLNK(self.stat.st_mode)

    @property
    def signature(self) -> tuple[int, int, int, int]:
        """Differs when the content does."""
        return (self.stat.st_size, self.stat.st_mtime_ns, self.stat.st_ctime_ns, self.stat.st_ino)

    def open(self) -> int:
        """Return a descriptor on the regular file. Raises `OSError`."""
        fd = os.open(self.name, _FILE, dir_fd=self.folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(22, "it is no regular file any more", self.path)
        return fd


class Walker:
    """Looks at the tree below `root`, within a budget."""

    def __init__(self, root: str, budget: Budget, skip: list[str]) -> None:
        self.root = root.rstrip("/")
        self._budget = budget
        self._skip = re.compile("|".join(translate(p) for p in skip)) if skip else None

    def skips(self, path: str) -> bool:
        """Return whether nothing is wanted of a path."""
        return self._skip is not None and self._skip.fullmatch(path) is not None

    def glob(self, pattern: str, section: Section) -> Iterator[Found]:
        """Yield what a pattern fits, sorted; what cannot be read is noted in `section`."""
        parts = [part for part in pattern.split("/") if part]
        with _opened(self.root or "/", None) as fd:
            if fd is not None:
                yield from self._glob(fd, "", parts, section, 0)

    def below(self, found: Found, section: Section, depth: int = 0) -> Iterator[Found]:
        """Yield all below a folder, parents first, sorted; not what is skipped."""
        if depth >= DEPTH_MOST:
            section.cut(f"{found.path} is {DEPTH_MOST} folders deep")
            return
        with _opened(found.name, found.folder) as fd:
            if fd is None:
                section.note(f"{found.path} cannot be opened")
                return
            for child in self._children(fd, found.path, section):
                yield child
                if child.is_folder:
                    yield from self.below(child, section, depth + 1)

    def _glob(
        self, fd: int, path: str, parts: list[str], section: Section, depth: int
    ) -> Iterator[Found]:
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self._anywhere(fd, path, rest, section, depth)
            return
        for found in self._matching(fd, path, part, section):
            if not rest:
                yield found
            elif found.is_folder:
                with _opened(found.name, fd) as below:
                    if below is not None:
                        yield from self._glob(below, found.path, rest, section, depth)
            elif found.is_link:
                section.note(f"{found.path} is a symlink and is not followed")

    def _anywhere(
        self, fd: int, path: str, rest: list[str], section: Section, depth: int
    ) -> Iterator[Found]:
        if depth >= DEPTH_MOST:
            section.cut(f"{path} is {DEPTH_MOST} folders deep")
            return
        if rest:
            yield from self._glob(fd, path, rest, section, depth)
        for child in self._children(fd, path, section):
            if not rest:
                yield child
            if child.is_folder:
                with _opened(child.name, fd) as below:
                    if below is not None:
                        yield from self._anywhere(below, child.path, rest, section, depth + 1)

    def _matching(self, fd: int, path: str, part: str, section: Section) -> Iterator[Found]:
        if not _is_pattern(part):
            if not self._budget.take_name():
                section.cut("too many names were looked at")
                return
            with contextlib.suppress(OSError):
                found = os.stat(part, dir_fd=fd, follow_symlinks=False)
                where = f"{path}/{part}"
                if not self.skips(where):
                    yield Found(where, part, found, fd)
            return
        fits = re.compile(fnmatch.translate(part)).match
        for child in self._children(fd, path, section):
            if fits(child.name) and (part.startswith(".") or not child.name.startswith(".")):
                yield child

    def _children(self, fd: int, path: str, section: Section) -> Iterator[Found]:
        try:
            names = os.listdir(fd)
        except OSError as exc:
            section.note(f"{path or '/'} cannot be listed: {exc.strerror}")
            return
        names.sort()
        for name in names:
            if not self._budget.take_name():
                section.cut("too many names were looked at")
                return
            where = f"{path}/{name}"
            if self.skips(where):
                continue
            try:
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue  # gone since it was listed
            yield Found(where, name, info, fd)


@contextlib.contextmanager
def _opened(name: str, folder: int | None) -> Iterator[int | None]:
    """Enter with a descriptor on a folder; None when it is none, or is closed to us."""
    try:
        flags = _FOLDER if folder is not None else _FOLDER & ~os.O_NOFOLLOW
        fd = os.open(name, flags, dir_fd=folder)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _is_pattern(part: str) -> bool:
    return any(letter in part for letter in "*?[")


@lru_cache(maxsize=1024)
def translate(pattern: str) -> str:
    """Return a path pattern as a regular expression for whole paths; what it fits stands for all below it too."""
    words = []
    for part in pattern.strip("/").split("/"):
        if part == "**":
            words.append("(?:/[^/]+)*")
        else:
            words.append("/" + re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]"))
    return "".join(words) + "(?:/.*)?"
