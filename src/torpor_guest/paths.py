"""Names and what is so about them: checked on the way in, described on the way out."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.users import User, find_user, group_name, user_name

MAX_PATH = 4096


def checked(params: dict[str, Any], key: str = "path") -> str:
    """Return the absolute path in `params`, or raise `AgentError`."""
    path = params.get(key)
    if not isinstance(path, str) or not path.startswith("/"):
        raise AgentError(errors.INVALID, f"{str(path)[:200]!r} is not an absolute path")
    if "\0" in path or len(os.fsencode(path)) > MAX_PATH:
        raise AgentError(errors.INVALID, f"a path holds no NUL and at most {MAX_PATH} bytes")
    return path


def number(params: dict[str, Any], key: str, default: int | None) -> int | None:
    """Return the whole number >= 0 in `params`, or raise `AgentError`."""
    value = params.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise AgentError(errors.INVALID, f"{key} is a whole number from 0 on, got {value!r}")
    return value


def owner_in(params: dict[str, Any]) -> User | None:
    """Return the user that `params` names for new files; None if it names none."""
    name = params.get("user")
    if name is None:
        return None
    if not isinstance(name, str):
        raise AgentError(errors.INVALID, f"{name!r} is no user")
    return find_user(name)


def describe(path: str, found: os.stat_result | None = None) -> dict[str, Any]:
    """Return what `path` is, not following a symlink, as the host reads it."""
    try:
        found = found or os.lstat(path)
        target = os.readlink(path) if stat.S_ISLNK(found.st_mode) else None
    except OSError as exc:
        raise errors.from_os(exc, path) from exc
    kind = (
        "file"
        if stat.S_ISREG(found.st_mode)
        else "dir"
        if stat.S_ISDIR(found.st_mode)
        else "symlink"
        if target is not None
        else "other"
    )
    return {
        "name": os.path.basename(path.rstrip("/")) or "/",
        "path": path,
        "kind": kind,
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "user": user_name(found.st_uid),
        "group": group_name(found.st_gid),
        "mtime_ns": found.st_mtime_ns,
        "target": target,
    }


def make_parents(path: str, owner: User | None) -> None:
    """Make the folders above `path` that are missing, for `owner`."""
    make_dirs(os.path.dirname(path.rstrip("/")) or "/", 0o755, owner)


def make_dirs(path: str, mode: int, owner: User | None) -> None:
    """Make `path` and the folders above it that are missing."""
    missing = []
    here = path.rstrip("/") or "/"
    while not os.path.isdir(here):
        missing.append(here)
        here = os.path.dirname(here)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o755)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise NotADirectoryError(20, "Not a directory", folder) from None
            continue
        if folder == missing[0]:
            os.chmod(folder, mode)
        if owner and os.geteuid() == 0:
            os.chown(folder, owner.uid, owner.gid)


def sync_dir(path: str) -> None:
    """Make the names in folder `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def real(path: str) -> str:
    """Return `path` with the symlinks in it followed, the last one too."""
    return str(Path(path).resolve())
