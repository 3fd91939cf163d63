"""The folder that COPY takes from: `.dockerignore`, patterns, and nothing from outside of it."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import os
import posixpath
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from torpor.errors import InvalidRequest, LimitExceeded

MOST_ENTRIES, MOST_BYTES = 500_000, 16 << 30
"""Of one COPY."""
_IGNORE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to copy."""

    path: Path
    name: str
    """Relative to the target; of a file that is a source itself only its own name."""
    mode: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What one COPY copies."""

    entries: tuple[Entry, ...]
    is_single: bool
    """It is one file, which the target may give another name."""

    def digest(self) -> str:
        """Return a digest of names, modes and content. Blocks."""
        hasher = hashlib.sha256()
        for entry in self.entries:
            kind = stat.S_IFMT(entry.path.lstat().st_mode)
            content = ""
            if kind == stat.S_IFLNK:
                content = str(entry.path.readlink())
            elif kind == stat.S_IFREG:
                with _open(entry.path) as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            line = repr((entry.name, kind, entry.mode, content))
            hasher.update(line.encode("utf-8", "surrogateescape"))
        return hasher.hexdigest()

    def pack(self, target: Path, *, name: str | None, mode: int | None) -> list[str]:
        """Write the entries, owned by root, as a tar to `target`; return their names. Blocks.

        Args:
            target: a file that is not there.
            name: what a single file is to be called; None: as it is.
            mode: of all entries; None: their own.
        """
        names = []
        with tarfile.open(target, "x", format=tarfile.PAX_FORMAT) as tar:
            for entry in self.entries:
                called = name if name is not None and self.is_single else entry.name
                info = tar.gettarinfo(entry.path, called)
                info.uid = info.gid = 0
                info.uname = info.gname = "root"
                if info.islnk():  # a second name in the context is a file of its own
                    info.type, info.size = tarfile.REGTYPE, entry.path.lstat().st_size
                info.mode = entry.mode if mode is None or info.issym() else mode
                if info.isreg():
                    with _open(entry.path) as file:
                        tar.addfile(info, file)
                else:
                    tar.addfile(info)
                names.append(called)
        return names


class Context:
    """A build's context. All methods block."""

    def __init__(self, folder: Path) -> None:
        """Begin with the folder.

        Raises:
            InvalidRequest: there is none, or its `.dockerignore` cannot be read.
        """
        if not folder.is_dir():
            raise InvalidRequest(f"the context {folder} is no folder", path=folder)
        self.folder = folder.resolve()
        self._ignored = _read_ignore(self.folder / ".dockerignore")

    def select(self, sources: tuple[str, ...], where: str) -> Selection:
        """Return what the patterns `sources` name; `where` begins messages.

        Raises:
            InvalidRequest: one leads out of the context, or names nothing.
            LimitExceeded: it is more than one COPY may copy.
        """
        entries: list[Entry] = []
        single = True
        total = 0
        for source in sources:
            found = self._expand(source, where)
            if not found:
                raise InvalidRequest(
                    f"{where}: COPY {source!r} names nothing in the context {self.folder}",
                    hint="paths are relative to the context; is it in .dockerignore?",
                )
            for path in found:
                for entry in self._below(path, where):
                    single = single and not path.is_dir()
                    size = entry.path.lstat().st_size
                    total += size if not entry.path.is_dir() else 0
                    entries.append(entry)
                    if len(entries) > MOST_ENTRIES or total > MOST_BYTES:
                        raise LimitExceeded(
                            f"{where}: COPY {source!r} is over {MOST_ENTRIES} entries or {MOST_BYTES} bytes",
                            hint="leave out what is not needed, with .dockerignore",
                        )
        return Selection(tuple(entries), single and len(entries) == 1)

    def _expand(self, source: str, where: str) -> list[Path]:
        parts = [part for part in posixpath.normpath(source.lstrip("/")).split("/") if part != "."]
        if ".." in parts or "\0" in source:
            raise InvalidRequest(f"{where}: COPY {source!r} leads out of the context")
        found = [self.folder]
        for part in parts:
            after = []
            for folder in found:
                if any(char in part for char in "*?["):
                    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
                    after += [folder / n for n in names if fnmatch.fnmatchcase(n, part)]
                elif os.path.lexists(folder / part):
                    after.append(folder / part)
            found = [self._inside(path, source, where) for path in after]
        return [path for path in found if not self._is_ignored(path) or self._keeps_some(path)]

    def _keeps_some(self, folder: Path) -> bool:
        """Return whether something in an ignored folder is kept by a later pattern."""
        return any(
            not self._is_ignored(Path(root, name))
            for root, folders, files in os.walk(folder)
            for name in (*folders, *files)
        )

    def _inside(self, path: Path, source: str, where: str) -> Path:
        """Return where a path leads when it does not leave the context."""
        real = path.resolve()
        if real != self.folder and self.folder not in real.parents:
            raise InvalidRequest(f"{where}: COPY {source!r} leads out of the context, to {real}")
        return real

    def _below(self, top: Path, where: str) -> list[Entry]:
        """Return a file, or what is in a folder, which itself is not copied."""
        if not top.is_dir():
            return [_entry(top, top.name, where)]
        entries = []
        for root, folders, files in os.walk(top):
            folders.sort()
            for name in sorted((*folders, *files)):
                path = Path(root, name)
                if not self._is_ignored(path):
                    entries.append(_entry(path, str(path.relative_to(top)), where))
        return entries

    def _is_ignored(self, path: Path) -> bool:
        name = str(path.relative_to(self.folder))
        hidden = False
        for pattern, is_kept in self._ignored:
            if pattern.fullmatch(name):
                hidden = not is_kept
        return hidden


@contextlib.contextmanager
def readable(where: str) -> Iterator[None]:
    """Enter to read a context; what cannot be read is said, beginning with `where`.

    Raises:
        InvalidRequest: a file cannot be read, or changed while it was.
    """
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        name = f" {exc.filename}" if exc.filename else ""
        raise InvalidRequest(
            f"{where}: the context{name} cannot be read: {exc.strerror or exc}",
            hint="let it be as it is while the build goes on, and readable for the daemon",
        ) from exc


def _entry(path: Path, name: str, where: str) -> Entry:
    mode = path.lstat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        raise InvalidRequest(
            f"{where}: {path} is neither a file, a folder nor a symlink",
            hint="name it in .dockerignore",
        )
    return Entry(path, name, stat.S_IMODE(mode))


def _open(path: Path) -> BufferedReader:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return open(fd, "rb")  # noqa: PTH123 - a descriptor


def _read_ignore(path: Path) -> list[tuple[re.Pattern[str], bool]]:
    """Return the patterns of a `.dockerignore`, and whether each keeps what it matches."""
    if not path.is_file():
        return []
    data = path.read_bytes()
    if len(data) > _IGNORE_BYTES:
        raise InvalidRequest(f"{path} is over {_IGNORE_BYTES} bytes", path=path)
    found = []
    for raw in data.decode("utf-8", "surrogateescape").splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        is_kept = line.startswith("!")
        pattern = posixpath.normpath(line.lstrip("!").strip().lstrip("/") or ".")
        found.append((re.compile(_as_regex(pattern)), is_kept))
    return found


def _as_regex(pattern: str) -> str:
    """Return a pattern of `.dockerignore` as a regular expression; it matches what is below, too."""
    out = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            out.append(".*")
            at += 2
        elif pattern[at] == "*":
            out.append("[^/]*")
            at += 1
        elif pattern[at] == "?":
            out.append("[^/]")
            at += 1
        else:
            out.append(re.escape(pattern[at]))
            at += 1
    return f"(?:{''.join(out)})(?:/.*)?"
