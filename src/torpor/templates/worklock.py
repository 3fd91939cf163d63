"""Work folders of builds: each is held by a lock that dies with its builder, whatever ends that.

`build-X` is a folder below the home's `tmp`, `build-X.lock` its lock. A lock that nobody holds means that
the folder is rubbish. The lock file is removed while it is held, so a lock counts only if the file that
was locked is still the one of that name.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

_POLL_S = 0.2


def try_lock(path: Path) -> int | None:
    """Lock file `path`, made if missing, and return its descriptor; None while another holds it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(fd).st_ino == path.stat().st_ino:
                return fd
        os.close(fd)


def unlock(path: Path, fd: int) -> None:
    """Remove the lock file and let go of the lock; the folder must be gone by now."""
    path.unlink(missing_ok=True)
    os.close(fd)


@contextlib.asynccontextmanager
async def held(folder: Path, on_wait: Callable[[], None]) -> AsyncIterator[None]:
    """Hold the lock of work folder `folder`; `on_wait` is called once if another builder has it."""
    path = _lock_of(folder)
    fd = try_lock(path)
    if fd is None:
        on_wait()
        while fd is None:
            await asyncio.sleep(_POLL_S)
            fd = try_lock(path)
    try:
        yield
    finally:
        unlock(path, fd)


def names(tmp: Path) -> list[str]:
    """Return the names of all work folders below `tmp`, also of those of which only a trace is left."""
    found = [*tmp.glob("build-*"), *tmp.glob(".build-*.doomed")]
    plain = (path.name.removesuffix(".lock").removesuffix(".doomed").lstrip(".") for path in found)
    return sorted(set(plain))


@contextlib.contextmanager
def abandoned(folder: Path) -> Iterator[bool]:
    """Hold the lock of work folder `folder` and yield True if no live builder has it; else yield False."""
    path = _lock_of(folder)
    fd = try_lock(path)
    if fd is None:
        yield False
        return
    try:
        yield True
    finally:
        unlock(path, fd)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")
