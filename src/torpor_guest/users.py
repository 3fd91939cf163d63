"""Who runs a command and where: users, their groups, and what the image says its defaults are."""

from __future__ import annotations

import grp
import json
import os
import pwd
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torpor_guest import errors
from torpor_guest.errors import AgentError

IMAGE_FILE = "/etc/torpor/image.json"
BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    """The image's defaults, from `/etc/torpor/image.json`."""

    env: Mapping[str, str] = field(default_factory=dict)
    default_user: str | None = None
    default_cwd: str | None = None

    @staticmethod
    def load(path: Path) -> Image:
        """Return what the file says; a missing file says nothing.

        Raises:
            ValueError: the file is not what it should be.
        """
        try:
            value: Any = json.loads(path.read_bytes())
        except FileNotFoundError:
            return Image()
        if not isinstance(value, dict) or not isinstance(value.get("env", {}), dict):
            raise ValueError(f"{path} is not an object with env, default_user and default_cwd")  # noqa: TRY004
        return Image(
            env={str(k): str(v) for k, v in value.get("env", {}).items()},
            default_user=value.get("default_user") or None,
            default_cwd=value.get("default_cwd") or None,
        )


@dataclass(frozen=True)
class User:
    """A user of the guest."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str

    groups: tuple[int, ...] = ()

    @property
    def credentials(self) -> tuple[int, int, list[int]] | None:
        """uid, gid and groups to take on; None when that is who we are or all we can be."""
        if os.geteuid() != 0:
            return None
        return self.uid, self.gid, list(self.groups)


_KNOWN_S = 5.0
_KNOWN_MOST = 64
_FILES = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf")
_known: dict[Any, tuple[float, Any, User]] = {}
"""Users that were looked up a moment ago: commands come in bursts, and a look-up reads several files."""


def find_user(wanted: str | None) -> User:
    """Return the user named or numbered `wanted`; None is the agent's own.

    Raises:
        AgentError: there is no such user, or only root could become it.
    """
    now, stamp = time.monotonic(), _stamp()
    known = _known.get(wanted)
    if known and now - known[0] < _KNOWN_S and known[1] == stamp:
        return known[2]
    user = _look_up(wanted)
    if len(_known) > _KNOWN_MOST:
        _known.clear()
    _known[wanted] = (now, stamp, user)
    return user


def _stamp() -> tuple[tuple[int, int, int], ...]:
    """Return what changes when the files with the users do."""
    found = []
    for path in _FILES:
        try:
            seen = os.stat(path)
        except OSError:
            continue
        found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
    return tuple(found)


def _look_up(wanted: str | None) -> User:
    if wanted is None:
        user = _by_uid(os.geteuid())
    elif wanted.isdigit() and int(wanted) < 1 << 32:
        user = _by_uid(int(wanted))
    else:
        try:
            user = _from(pwd.getpwnam(wanted))
        except (KeyError, ValueError) as exc:
            raise AgentError(errors.INVALID, f"the guest has no user {wanted!r}") from exc
    if os.geteuid() not in (0, user.uid):
        raise AgentError(
            errors.INVALID, f"the agent is not root and cannot run as user {user.name!r}"
        )
    if os.geteuid() != 0:
        return user
    return replace(user, groups=tuple(os.getgrouplist(user.name, user.gid)))


_user_names: dict[int, str] = {}
_group_names: dict[int, str] = {}


def user_name(uid: int) -> str:
    """Return the name of user `uid`, or the number if it has none."""
    if uid not in _user_names:
        _user_names[uid] = _by_uid(uid).name
    return _user_names[uid]


def group_name(gid: int) -> str:
    """Return the name of group `gid`, or the number if it has none."""
    if gid not in _group_names:
        try:
            _group_names[gid] = grp.getgrgid(gid).gr_name
        except KeyError:
            _group_names[gid] = str(gid)
    return _group_names[gid]


def forget_names() -> None:
    """Look names up anew from now on."""
    _user_names.clear()
    _group_names.clear()


def environment(user: User, *layers: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return a command's environment: what a login gives, with each of `layers` over it.

    Raises:
        AgentError: a name or value cannot be in an environment.
    """
    env = {
        "PATH": BASE_PATH,
        "HOME": user.home,
        "USER": user.name,
        "LOGNAME": user.name,
        "SHELL": user.shell,
        "LANG": "C.UTF-8",
    }
    for layer in layers:
        env.update(layer)
    for key, value in env.items():
        if not key or "=" in key or "\0" in key or "\0" in value:
            raise AgentError(
                errors.INVALID, f"{key!r} cannot be set in an environment to {value[:100]!r}"
            )
    return {os.fsencode(key): os.fsencode(value) for key, value in env.items()}


def _by_uid(uid: int) -> User:
    try:
        return _from(pwd.getpwuid(uid))
    except KeyError:
        return User(str(uid), uid, uid, "/", "/bin/sh")


def _from(entry: pwd.struct_passwd) -> User:
    return User(
        entry.pw_name,
        entry.pw_uid,
        entry.pw_gid,
        entry.pw_dir or "/",
        entry.pw_shell or "/bin/sh",
    )
