"""A VMM's own user: as root, each machine runs under a uid that owns its folder and nothing else.

A VMM that its guest took over can then reach neither the daemon's files nor another machine's. Layers
and templates are readable for a group that every VMM has (`layers.seal`); they are writable for none.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from torpor.errors import HostNotReady
from torpor.layers.seal import LAYERS_GID

_FIRST_UID = 1_900_000_001
"""Above every range that systemd, containers and subuid files use (they end at 1879048191)."""
_COUNT = 65_000


@dataclass(frozen=True, slots=True)
class User:
    """Who a VMM runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def choose_user(machines: Path) -> User | None:
    """Return a user that no machine below `machines` has; None when we are not root and cannot change.

    Raises:
        HostNotReady: all are taken.
    """
    if os.geteuid() != 0:
        return None
    check_passable(machines)
    taken = set()
    for entry in machines.glob("*/vm"):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            taken.add(entry.stat().st_uid)
    for _ in range(1000):
        uid = _FIRST_UID + secrets.randbelow(_COUNT)
        if uid not in taken:
            return User(uid, uid, (LAYERS_GID, *_kvm_group()))
    raise HostNotReady(
        f"no free user id for a machine below {machines}",
        hint="delete sandboxes that are not needed",
    )


def is_a_machines(uid: int) -> bool:
    """Return whether it is of those that `choose_user` chooses."""
    return _FIRST_UID <= uid < _FIRST_UID + _COUNT


def check_passable(folder: Path) -> None:
    """Raise `HostNotReady` when another user cannot come through to `folder`. Matters only as root."""
    for place in (folder, *folder.parents):
        if not place.stat().st_mode & 0o001:
            raise HostNotReady(
                f"the users that machines run as cannot pass through {place}",
                hint=f"run: chmod o+x {place}  or let TORPOR_HOME name another place, such as /var/lib/torpor",
                folder=place,
            )


def kvm_is_closed(device: Path = Path("/dev/kvm")) -> bool:
    """Return whether the users that machines run as may not open it, though we may. Blocks."""
    if os.geteuid() != 0:
        return False
    mode = device.stat().st_mode
    has_group = bool(_kvm_group(device)) and mode & 0o060 == 0o060
    return not has_group and mode & 0o006 != 0o006


def _kvm_group(device: Path = Path("/dev/kvm")) -> tuple[int, ...]:
    """Return the group that may use KVM; never root's, which would open far more than that to a VMM."""
    try:
        group = device.stat().st_gid
    except OSError:
        return ()
    return (group,) if group != 0 else ()
