"""Values for tests, made in one place."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from torpor.base.ids import new_id
from torpor.db.sandboxes import SandboxRow
from torpor.model import SandboxId, SandboxInfo, SandboxState, TemplateInfo

T0 = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def make_info(**changes: Any) -> SandboxInfo:
    """Return a running sandbox's info with `changes` made."""
    values: dict[str, Any] = {
        "id": SandboxId(new_id("sbx")),
        "state": SandboxState.RUNNING,
        "template": "base",
        "template_digest": "0" * 64,
        "vcpus": 1,
        "ram_mib": 512,
        "disk_gib": 4,
        "network": "user",
        "env_names": ("A", "B"),
        "metadata": {"k": "v"},
        "ttl_seconds": None,
        "on_timeout": "delete",
        "created_at": T0,
        "expires_at": None,
    }
    return SandboxInfo(**(values | changes))


def make_row(**changes: Any) -> SandboxRow:
    """Return a row whose info has `changes` made."""
    return SandboxRow(make_info(**changes))


def make_template(**changes: Any) -> TemplateInfo:
    """Return a template's info with `changes` made."""
    values: dict[str, Any] = {
        "name": "base",
        "digest": "0" * 64,
        "created_at": T0,
        "vcpus": 1,
        "ram_mib": 512,
        "disk_gib": 4,
        "size_bytes": 1 << 28,
        "default_user": "root",
        "default_cwd": "/workspace",
        "env": {},
    }
    return TemplateInfo(**(values | changes))


class FakeClock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.time = T0

    def now(self) -> datetime:
        return self.time

    def monotonic_s(self) -> float:
        return self.time.timestamp()
