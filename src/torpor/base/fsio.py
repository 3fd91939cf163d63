"""Files that survive a crash, and short names for Unix sockets.

The order is always: write to a temporary file in the same directory, fsync it, rename it into place,
fsync the directory. After a crash the old content is there or the new, never a mix.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torpor.errors import Busy, DataDamaged, NotFound

_FICLONE = 0x40049409
"""ioctl number of FICLONE, include/uapi/linux/fs.h."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` with `data`; on any failure the old content stays and no temporary file is left."""
    with replacing(path, mode=mode) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Enter with a file that takes the place of `path`, durably, when the block ends.

    On any failure the old content stays and no temporary file is left.
    """
    fd, tmp = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(tmp, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(tmp)
        raise
    fsync_dir(path.parent)


def write_json(path: Path, value: object, *, mode: int = 0o600) -> None:
    """Replace `path` with `value` as JSON, durably."""
    write_atomic(path, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n", mode=mode)


def read_json(path: Path, *, limit_bytes: int = 16 << 20) -> object:
    """Return the JSON in `path`.

    Raises:
        NotFound: there is no such file.
        DataDamaged: it is too large or is not JSON.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except FileNotFoundError as exc:
        raise NotFound(f"{path} does not exist", path=path) from exc
    if len(data) > limit_bytes:
        raise DataDamaged(f"{path} is over {limit_bytes} bytes", path=path)
    try:
        return json.loads(data)
    except ValueError as exc:
        raise DataDamaged(f"{path} is not JSON: {exc}", path=path) from exc


def fsync_dir(path: Path) -> None:
    """Make the names in directory `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    """Make the content of file `path` durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish_dir(source: Path, target: Path) -> None:
    """Rename directory `source` to `target` with all its files durable first; both on one file system.

    Raises:
        FileExistsError: `target` exists and is not empty; `source` stays as it was.
    """
    for root, _, files in os.walk(source):
        for name in files:
            file = Path(root) / name
            if stat.S_ISREG(file.lstat().st_mode):
                fsync_file(file)
        fsync_dir(Path(root))
    try:
        os.rename(source, target)
    except OSError as exc:
        if target.exists():
            raise FileExistsError(f"{target} exists") from exc
        raise
    fsync_dir(target.parent)


def remove_tree(path: Path) -> None:
    """Remove `path` and all below it; it is no failure if it is gone already."""
    doomed = path.with_name(f".{path.name}.doomed")
    try:
        os.rename(
            path, doomed
        )  # out of sight at once: a half-removed tree is never taken for a whole one
    except FileNotFoundError:
        if not doomed.exists():
            return
    except OSError:
        with contextlib.suppress(OSError):
            remove_all(doomed)
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, doomed)
    with contextlib.suppress(OSError):
        remove_all(doomed)
    with contextlib.suppress(FileNotFoundError):
        fsync_dir(path.parent)


def remove_all(path: Path) -> None:
    """Remove folder `path` with all in it, however deep it is; no link is followed.

    Who owns the folder may have made it to be in our way: neither Python's stack, nor the length of a path, nor the
    number of open files bounds how deep it can be.

    Raises:
        OSError: it is no folder, something in it cannot be removed, or somebody moves what is in it meanwhile.
    """
    failed: list[OSError] = []
    above: list[
        tuple[os.stat_result, str, list[str]]
    ] = []  # with the name gone down, and what waits
    here = os.open(path, _FOLDER)
    try:
        folders = _remove_files(here, failed)
        while folders or above:
            if folders:
                name = folders.pop()
                try:
                    below = _enter(here, name)
                except OSError as exc:
                    failed.append(exc)
                    continue
                above.append((os.fstat(here), name, folders))
                os.close(here)
                here = below
                folders = _remove_files(here, failed)
            else:
                before, name, folders = above.pop()
                up = os.open("..", _FOLDER, dir_fd=here)
                os.close(here)
                here = up
                _check_same(os.fstat(here), before, name)
                try:
                    os.rmdir(name, dir_fd=here)
                except OSError as exc:
                    failed.append(exc)
    finally:
        os.close(here)
    if failed:
        raise failed[0]
    path.rmdir()


def _remove_files(folder: int, failed: list[OSError]) -> list[str]:
    """Remove all in an open folder but its folders; return their names."""
    try:
        names = os.listdir(folder)
    except OSError as exc:
        failed.append(exc)
        return []
    left = []
    for name in names:
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            left.append(name)
        except FileNotFoundError:
            pass
        except OSError as exc:
            failed.append(exc)
    return left


def _enter(folder: int, name: str) -> int:
    """Open a folder in an open folder, from which there is a way back."""
    fd = os.open(name, _FOLDER, dir_fd=folder)
    try:
        _check_same(os.stat("..", dir_fd=fd), os.fstat(folder), name)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_same(found: os.stat_result, wanted: os.stat_result, name: str) -> None:
    """Raise unless what a folder lies in is what it lay in."""
    if not os.path.samestat(found, wanted):
        raise OSError(errno.ESTALE, "it was moved while it was removed", name)


def make_private_dir(path: Path, *, mode: int = 0o700) -> Path:
    """Create directory `path` (and its parents) with `mode`, or leave an existing one as it is."""
    path.mkdir(parents=True, exist_ok=True, mode=mode)
    return path


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on file `path`; the kernel drops it when the process ends, however it ends.

    Raises:
        Busy: `wait` is False and another process holds it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as exc:
            raise Busy(f"{path} is held by another process", path=path) from exc
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def socket_name(path: Path) -> Iterator[str]:
    """Yield a name for the Unix socket at `path` that fits the kernel's limit of 108 bytes.

    It goes through an open directory, so the directory's own path may be of any length.
    """
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


@contextlib.contextmanager
def foreign_socket_name(path: Path) -> Iterator[str]:
    """Yield a name for the Unix socket at `path`, which lies in a folder of somebody we do not trust.

    It is that very socket's, whatever is put in its place meanwhile.

    Raises:
        OSError: nothing is there, or a link, or anything but a socket of the folder's owner.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        owner = os.fstat(folder).st_uid
        fd = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        found = os.fstat(fd)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != owner:
            raise OSError(errno.ENOTSOCK, "it is no socket of the folder's owner", str(path))
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def open_plain(path: Path, flags: int) -> BinaryIO:
    """Open a file in a folder of somebody we do not trust: only a plain file with one name, and never waiting.

    Raises:
        OSError: it is missing, or is a link, a pipe, a device, or another file's second name.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no plain file with one name", str(path))
    return os.fdopen(fd, "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "r+b")


def can_reflink(directory: Path) -> bool:
    """Return whether files in `directory` can share their blocks (XFS, btrfs), by trying it."""
    with (
        tempfile.NamedTemporaryFile(dir=directory) as source,
        tempfile.NamedTemporaryFile(dir=directory) as target,
    ):
        source.write(b"\0" * 4096)
        source.flush()
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError:
            return False
        return True


def free_bytes(directory: Path) -> int:
    """Return how many bytes an ordinary user may still write below `directory`."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def allocated_bytes(path: Path) -> int:
    """Return the bytes of disk that `path` and all below it take, holes not counted; 0 if it is gone."""
    total = 0
    if path.is_file():
        return path.lstat().st_blocks * 512
    for root, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(root) / name).lstat().st_blocks * 512
    return total


def clone_file(source: Path, target: Path) -> bool:
    """Make `target` (new) a copy of `source`, sharing its blocks where the file system can; return whether it does.

    Without reflink the data is copied and holes stay holes. On failure `target` is removed. Not fsynced.
    """
    with source.open("rb") as file:
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.ioctl(fd, _FICLONE, file.fileno())
            except OSError:
                _copy_sparse(file.fileno(), fd)
            else:
                return True
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
    return False


def _copy_sparse(source: int, target: int) -> None:
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        at = os.lseek(source, start, os.SEEK_HOLE)
        while start < at:
            done = os.copy_file_range(source, target, at - start, start, start)
            if done == 0:
                raise OSError(f"the file became shorter while it was copied, at {start}")
            start += done
