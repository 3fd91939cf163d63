"""The synchronous face of a sandbox's files; `torpor.sdk.files` says what each call does."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from pathlib import Path

from torpor.model import FileInfo
from torpor.sdk.files import AsyncFilesystem
from torpor.sdk.loop import loop_thread
from torpor.sdk.results import Progress, Transfer

Content = str | bytes | Iterable[bytes]


class Filesystem:
    """Reads and writes the files of one sandbox, in chunks; memory stays bounded at any size."""

    def __init__(self, files: AsyncFilesystem) -> None:
        self._files = files

    def read(self, path: str, *, offset: int = 0, limit_bytes: int | None = None) -> bytes:
        """Return a file's bytes. Raises `NotFound`."""
        return loop_thread.run(self._files.read(path, offset=offset, limit_bytes=limit_bytes))

    def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return a file as text. Raises `NotFound`, `UnicodeDecodeError`."""
        return loop_thread.run(self._files.read_text(path, encoding=encoding, errors=errors))

    def read_stream(
        self, path: str, *, offset: int = 0, limit_bytes: int | None = None
    ) -> Iterator[bytes]:
        """Yield a file's bytes in chunks."""
        return loop_thread.iterate(
            self._files.read_stream(path, offset=offset, limit_bytes=limit_bytes)
        )

    def write(
        self, path: str, data: Content, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Replace a file by `data`, at once when all has arrived; missing folders are made."""
        return loop_thread.run(self._files.write(path, data, mode=mode, user=user))

    def append(self, path: str, data: Content, *, user: str | None = None) -> FileInfo:
        """Write `data` at the end of a file, which is made if it is missing."""
        return loop_thread.run(self._files.append(path, data, user=user))

    def list(self, path: str) -> builtins.list[FileInfo]:
        """Return the names in a folder, sorted."""
        return loop_thread.run(self._files.list(path))

    def stat(self, path: str) -> FileInfo:
        """Return what a path is; a symlink is not followed. Raises `NotFound`."""
        return loop_thread.run(self._files.stat(path))

    def exists(self, path: str) -> bool:
        """Return whether there is anything at a path; a symlink counts, wherever it leads."""
        return loop_thread.run(self._files.exists(path))

    def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo:
        """Make a folder; with `parents` those above it too, and an existing one is no error."""
        return loop_thread.run(self._files.mkdir(path, parents=parents, mode=mode))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, symlink or folder. Raises `NotFound`, and `Conflict` if it is not empty."""
        loop_thread.run(self._files.remove(path, recursive=recursive))

    def rename(self, source: str, target: str) -> FileInfo:
        """Rename within one file system of the guest, replacing a file at `target`."""
        return loop_thread.run(self._files.rename(source, target))

    def walk(self, path: str, *, max_depth: int | None = None) -> Iterator[FileInfo]:
        """Yield everything below a folder, parents before children; symlinks are not followed."""
        return loop_thread.iterate(self._files.walk(path, max_depth=max_depth))

    def upload(
        self,
        local: str | Path,
        remote: str,
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> Transfer:
        """Copy a file to `remote`, or what is in a folder into the folder `remote`."""
        return loop_thread.run(self._files.upload(local, remote, user=user, progress=progress))

    def download(
        self,
        remote: str,
        local: str | Path,
        *,
        skip_outside_links: bool = False,
        progress: Progress | None = None,
    ) -> Transfer:
        """Copy a file to `local`, or what is in a folder into the folder `local`, and nowhere else."""
        return loop_thread.run(
            self._files.download(
                remote, local, skip_outside_links=skip_outside_links, progress=progress
            )
        )
