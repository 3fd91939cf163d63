"""The named files of an image: a folder, or a tar that is not compressed."""

from __future__ import annotations

import json
import os
import posixpath
import stat
import tarfile
from pathlib import Path
from typing import IO, Any, Protocol

from torpor.errors import InvalidRequest

_NAMES_MOST = 100_000
_SMALL_BYTES = 4 << 20
_PACKED = {
    b"\x1f\x8b": "gunzip",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
}


class Named(Protocol):
    """Something that messages call by its path."""

    @property
    def path(self) -> Path:
        """What it is called."""
        ...


class Source(Named, Protocol):
    """Files of an image by name. All methods block."""

    def has(self, name: str) -> bool:
        """Return whether there is such a file."""
        ...

    def open(self, name: str) -> IO[bytes]:
        """Return the file, to be closed by the caller. Raises `InvalidRequest`: there is none."""
        ...

    def close(self) -> None:
        """Let go of the image. Idempotent."""
        ...


def open_source(path: Path) -> Source:
    """Return the source at `path`.

    Raises:
        InvalidRequest: it is neither a folder nor a plain tar.
    """
    if path.is_dir():
        return _Folder(path)
    try:
        with _open_regular(path) as file:
            head = file.read(6)
    except OSError as exc:
        raise InvalidRequest(f"cannot read the image {path}: {exc.strerror}", path=path) from exc
    for magic, tool in _PACKED.items():
        if head.startswith(magic):
            raise InvalidRequest(
                f"the image {path} is compressed; a plain tar is wanted", hint=f"run: {tool} {path}"
            )
    return _Archive(path)


def wrong(source: Named, what: str, *, hint: str | None = None) -> InvalidRequest:
    """Return the error for an image that is not what it should be."""
    return InvalidRequest(f"the image {source.path} {what}", hint=hint, path=source.path)


def read_small(source: Source, name: str) -> bytes:
    """Return a small file of the image. Raises `InvalidRequest`: it is missing, or over 4 MiB."""
    with source.open(name) as file:
        data = file.read(_SMALL_BYTES + 1)
    if len(data) > _SMALL_BYTES:
        raise wrong(source, f"has {name} with over {_SMALL_BYTES} bytes")
    return data


def parse_json(source: Named, name: str, data: bytes) -> Any:
    """Return JSON of the image. Raises `InvalidRequest`: it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise wrong(source, f"has {name}, which is not JSON") from exc


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, name: str) -> bool:
        return _is_inside(name) and (self.path / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        if not _is_inside(name):
            raise wrong(self, f"names {name!r}, which leads out of it")
        try:
            return _open_regular(self.path / name)
        except OSError as exc:
            raise wrong(self, f"has no {name}", hint="copy it again, whole") from exc

    def close(self) -> None:
        pass


class _Archive:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tar = tarfile.open(path, "r:")  # noqa: SIM115 - closed by `close`
        except (tarfile.TarError, OSError, ValueError) as exc:
            raise InvalidRequest(
                f"the image {path} is neither a folder nor a tar",
                hint="docker save writes one, and so does skopeo copy … oci-archive:FILE",
            ) from exc
        self._members: dict[str, tarfile.TarInfo] = {}
        try:
            self._read_names()
        except BaseException:
            self._tar.close()
            raise

    def _read_names(self) -> None:
        try:
            while (member := self._tar.next()) is not None:
                self._members[posixpath.normpath(member.name)] = member
                self._tar.members = []  # type: ignore[attr-defined]  # else it keeps every header it has seen
                if len(self._members) > _NAMES_MOST:
                    raise wrong(self, f"has over {_NAMES_MOST} files")
        except (tarfile.TarError, OSError, ValueError) as exc:
            raise wrong(self, f"is damaged: {exc}") from exc

    def _find(self, name: str) -> tarfile.TarInfo | None:
        found = self._members.get(posixpath.normpath(name))
        if found is not None and found.issym():  # docker save writes equal layers once
            folder = posixpath.dirname(posixpath.normpath(name))
            found = self._members.get(posixpath.normpath(f"{folder}/{found.linkname}"))
        elif found is not None and found.islnk():
            found = self._members.get(posixpath.normpath(found.linkname))
        return found if found is not None and found.isreg() else None

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def open(self, name: str) -> IO[bytes]:
        member = self._find(name)
        file = self._tar.extractfile(member) if member is not None else None
        if file is None:
            raise wrong(self, f"has no {name}", hint="write it again, whole")
        return file

    def close(self) -> None:
        self._tar.close()


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/")


def _open_regular(path: Path) -> IO[bytes]:
    """Open a plain file without ever waiting for one that is not."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(22, "it is no plain file", str(path))
    return os.fdopen(fd, "rb")
