"""The names of previews: `8000-sbx_….HOST`, where HOST is a name that the daemon answers to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from torpor.base.ids import is_id
from torpor.model import SandboxId
from torpor.server.hosts import Hosts, name_of

_LABEL: Final = re.compile(r"([1-9][0-9]{0,4})-sbx[_-]([0-9a-z]{20})")


@dataclass(frozen=True, slots=True)
class Target:
    """One port of one sandbox."""

    sandbox_id: SandboxId
    port: int


def target_of(host: bytes | None, hosts: Hosts) -> Target | None:
    """Return what a Host header names; None: no preview, or below a name that is not ours.

    Some clients allow no underscore in a name, so `sbx-…` means the same.
    """
    if host is None:
        return None
    label, _, base = name_of(host).partition(".")
    found = _LABEL.fullmatch(label)
    if found is None or not hosts.answers_below(base):
        return None
    sandbox_id, port = f"sbx_{found[2]}", int(found[1])
    if port > 65535 or not is_id(sandbox_id, "sbx"):
        return None
    return Target(SandboxId(sandbox_id), port)


def label_of(target: Target) -> str:
    """Return the first part of a preview's name."""
    return f"{target.port}-{target.sandbox_id}"
