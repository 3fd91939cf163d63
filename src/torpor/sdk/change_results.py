"""What a change is asked with, and what its report is."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from torpor.errors import InvalidRequest
from torpor.model import Consistency, MemoryChoice
from torpor.sdk.checks_file import Checks, read_checks


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """The evidence of a change; as text it is the whole report."""

    data: Mapping[str, Any]
    """All of it; docs/reference/changes.md describes the fields."""
    text: str

    @property
    def headline(self) -> str:
        """What became of the change, in one sentence."""
        return str(self.data["headline"])

    @override
    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """Everything that `Sandbox.change` takes beside the reason."""

    run: str | None = None
    checks: Checks | None = None
    profile: str | Path | None = None
    kind: str | None = None
    allow: Sequence[str] = ()
    inventory: bool = True
    target: str | None = None
    probation_seconds: float = 0.0
    require_confirm: bool = True
    interval_seconds: float | None = None
    consistency: Consistency | None = None
    memory: MemoryChoice = "cold"
    reboot: bool = False
    force: bool = False
    author: str | None = None
    user: str | None = None
    cwd: str | None = None
    run_timeout_seconds: float = 3600.0
    lease_seconds: float = 60.0

    def body(self, reason: str) -> dict[str, Any]:
        """Return the request that begins the change. Reads files; raises `InvalidRequest` when one cannot be read."""
        text, source = checks_text(self.checks)
        return {
            "reason": reason,
            "author": who() if self.author is None else self.author,
            "target": self.target,
            "kind": "block" if self.run is None else "command",
            "command": self.run,
            "user": self.user,
            "cwd": self.cwd,
            "command_timeout_seconds": self.run_timeout_seconds,
            "checks": text,
            "checks_source": source,
            "profile": profile_text(self.profile),
            "change_kind": self.kind,
            "allow": list(self.allow),
            "inventory": self.inventory,
            "probation_seconds": self.probation_seconds,
            "require_confirm": self.require_confirm,
            "interval_seconds": self.interval_seconds,
            "consistency": self.consistency,
            "memory": self.memory,
            "reboot": self.reboot,
            "force": self.force,
            "lease_seconds": self.lease_seconds,
        }


def checks_text(checks: Checks | None) -> tuple[str | None, str]:
    """Return the text of checks, and what they are called in errors. Raises as `read_checks`."""
    return (None, "checks") if checks is None else read_checks(checks)


def profile_text(profile: str | Path | None) -> str | None:
    """Return a profile's name, or the text of its file."""
    if isinstance(profile, Path) or (
        profile and "\n" not in profile and ("/" in profile or profile.endswith((".yaml", ".yml")))
    ):
        return _read(Path(profile), "profile")
    return profile


def _read(path: Path, what: str) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise InvalidRequest(f"the {what} {path} cannot be read: {why}") from exc


def who() -> str:
    """Return the user's name, for whoever reads who asked; empty when it is not known."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
