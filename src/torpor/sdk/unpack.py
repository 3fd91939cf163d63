"""Writes the entries of a hostile tar below one folder and nowhere else.

Every folder on the way is opened by descriptor without following links, so neither an entry nor anyone
who changes the folder meanwhile can lead a write outside it. Set-id bits and owners are not taken over.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from torpor.errors import GuestFailed, InvalidRequest
from torpor.sdk.results import Transfer

_COPY_BYTES = 256 << 10
_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
NAME_LIMIT_BYTES = 4096


class Unpacker:
    """Unpacks one stream below `folder`."""

    def __init__(self, folder: Path, *, skip_outside_links: bool) -> None:
        self._folder = folder
        self._skip_links = skip_outside_links
        self._files = 0
        self._size_bytes = 0
        self._skipped: list[str] = []
        self._dir_modes: list[tuple[list[str], int]] = []

    def run(self, stream: IO[bytes]) -> Transfer:
        """Write all entries and return what was written.

        Raises:
            GuestFailed: an entry is refused, or the stream is no tar or was cut.
            InvalidRequest: the folder cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tarfile.open(
                fileobj=stream, mode="r|", bufsize=_COPY_BYTES, encoding="utf-8"
            ) as tar:
                for member in tar:
                    self._entry(tar, member)
            for parts, mode in reversed(self._dir_modes):
                with self._opened(parts) as fd:
                    os.fchmod(fd, mode)
        except tarfile.TarError as exc:
            raise GuestFailed(f"the guest sent no proper tar: {exc}") from exc
        except OSError as exc:
            raise InvalidRequest(
                f"cannot write below {self._folder}: {exc.strerror}: {exc.filename}",
                folder=self._folder,
            ) from exc
        return Transfer(
            files=self._files, size_bytes=self._size_bytes, skipped=tuple(self._skipped)
        )

    def _entry(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if member.isdir():
            self._make_dir(parts, member)
        elif not parts:
            raise _refused(member.name, "it has no name")
        elif member.isreg():
            self._write_file(parts, tar, member)
        elif member.issym():
            self._make_symlink(parts, member)
        elif member.islnk():
            self._make_hard_link(parts, member)
        else:
            raise _refused(member.name, "it is a device or a pipe")
        self._files += 1

    def _make_dir(self, parts: list[str], member: tarfile.TarInfo) -> None:
        with self._opened(parts, make=True):
            self._dir_modes.append((parts, (member.mode & 0o777) | 0o700))

    def _write_file(self, parts: list[str], tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        source = tar.extractfile(member)
        assert source is not None
        with self._opened(parts[:-1], make=True) as parent:
            _clear(parent, parts[-1], member.name)
            fd = os.open(parts[-1], _NEW, 0o600, dir_fd=parent)
            with os.fdopen(fd, "wb") as target:
                while data := source.read(_COPY_BYTES):
                    target.write(data)
                    self._size_bytes += len(data)
                target.flush()
                os.utime(fd, (member.mtime, member.mtime))
                os.fchmod(fd, member.mode & 0o777)

    def _make_symlink(self, parts: list[str], member: tarfile.TarInfo) -> None:
        leads_to = posixpath.normpath(posixpath.join(*parts[:-1], member.linkname))
        if member.linkname.startswith("/") or leads_to == ".." or leads_to.startswith("../"):
            if self._skip_links:
                self._skipped.append(member.name)
                self._files -= 1
                return
            raise _refused(
                member.name,
                f"the link leads outside, to {member.linkname!r}",
                hint="skip_outside_links=True leaves such links out",
            )
        with self._opened(parts[:-1], make=True) as parent:
            _clear(parent, parts[-1], member.name)
            os.symlink(member.linkname, parts[-1], dir_fd=parent)

    def _make_hard_link(self, parts: list[str], member: tarfile.TarInfo) -> None:
        target = _parts(member.linkname)
        if not target:
            raise _refused(member.name, f"it is a hard link to {member.linkname!r}")
        with (
            self._opened(target[:-1], make=True) as source,
            self._opened(parts[:-1], make=True) as parent,
        ):
            try:
                found = os.stat(target[-1], dir_fd=source, follow_symlinks=False)
            except FileNotFoundError as exc:
                raise _refused(member.name, "it is a hard link to nothing before it") from exc
            if not stat.S_ISREG(found.st_mode):
                raise _refused(member.name, "it is a hard link to something not a file")
            if target == parts:
                return
            _clear(parent, parts[-1], member.name)
            os.link(
                target[-1],
                parts[-1],
                src_dir_fd=source,
                dst_dir_fd=parent,
                follow_symlinks=False,
            )

    @contextlib.contextmanager
    def _opened(self, parts: list[str], *, make: bool = False) -> Iterator[int]:
        """Enter with a descriptor of the folder at `parts`, no link followed on the way."""
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                try:
                    below = os.open(part, _DIR, dir_fd=fd)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(part, 0o700, dir_fd=fd)
                    below = os.open(part, _DIR, dir_fd=fd)
                except NotADirectoryError as exc:
                    raise _refused("/".join(parts), f"{part!r} is not a folder") from exc
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)


def _parts(name: str) -> list[str]:
    """Return the parts of an entry's name; none for the folder itself.

    Raises:
        GuestFailed: the name is absolute, has `..` or is too long.
    """
    if name.startswith("/"):
        raise _refused(name, "its name is absolute")
    if "\0" in name or len(name.encode("utf-8", "surrogateescape")) > NAME_LIMIT_BYTES:
        raise _refused(name, "its name is too long or has a NUL")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _refused(name, "its name has '..'")
    return parts


def _clear(parent: int, name: str, whole: str) -> None:
    """Remove what is at `name`, unless it is a folder: a file is replaced, never written through."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        raise _refused(whole, "a folder is in its place")
    os.unlink(name, dir_fd=parent)


def _refused(name: str, why: str, *, hint: str | None = None) -> GuestFailed:
    return GuestFailed(f"the guest's entry {name!r} is refused: {why}", hint=hint, entry=name)
