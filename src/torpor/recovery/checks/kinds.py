"""The resources that a checks file can name: their attributes, and which option names what is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torpor.recovery.checks.matchers import ValueKind

FILETYPES = ("file", "directory", "symlink", "socket", "pipe", "block-device", "character-device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One resource."""

    attributes: Mapping[str, ValueKind] = field(default_factory=dict)
    target: str | None = None
    """The key that says what is looked at, if it is not the entry's own name."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What is wanted of an attribute that the entry does not name."""
    texts: tuple[str, ...] = ()
    """Options that are a text; so with the others."""
    flags: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    has_timeout: bool = False
    """Takes goss's `timeout`, in milliseconds."""
    special: tuple[str, ...] = ()
    """Keys with a shape of their own."""


KINDS: Mapping[str, Kind] = {
    "command": Kind(
        attributes={"exit-status": "whole", "stdout": "output", "stderr": "output"},
        target="exec",
        defaults={"exit-status": 0},
        texts=("user",),
        flags=("nagios",),
        has_timeout=True,
    ),
    "file": Kind(
        attributes={
            "exists": "flag",
            "mode": "text",
            "size": "whole",
            "owner": "text",
            "group": "text",
            "filetype": "text",
            "contents": "output",
            "contains": "output",
            "linked-to": "text",
            "md5": "text",
            "sha256": "text",
        },
        target="path",
        defaults={"exists": True},
    ),
    "port": Kind(
        attributes={"listening": "flag", "ip": "list"}, target="port", defaults={"listening": True}
    ),
    "process": Kind(
        attributes={"running": "flag", "count": "whole"}, target="comm", defaults={"running": True}
    ),
    "service": Kind(
        attributes={"enabled": "flag", "running": "flag", "restarts": "whole"}, target="name"
    ),
    "package": Kind(
        attributes={"installed": "flag", "versions": "list"},
        target="name",
        defaults={"installed": True},
    ),
    "http": Kind(
        attributes={"status": "whole", "headers": "output", "body": "output"},
        target="url",
        defaults={"status": 200},
        texts=("method", "request-body", "username", "password", "ca-file", "proxy"),
        flags=("allow-insecure", "no-follow-redirects"),
        lists=("request-headers",),
        has_timeout=True,
    ),
    "sqlite": Kind(
        attributes={"quick-check": "flag", "schema": "text"},
        target="path",
        defaults={"quick-check": True},
        flags=("write-canary",),
        special=("min-rows", "query"),
    ),
    "inventory": Kind(special=("rule",)),
    "turn": Kind(
        attributes={"exit-status": "whole", "stdout": "output", "stderr": "output"},
        target="exec",
        texts=("user",),
        has_timeout=True,
        special=("outage", "control"),
    ),
}

COMMON = ("title", "meta", "skip")
TIMINGS: Mapping[str, str] = {
    "initialDelaySeconds": "initial_delay_seconds",
    "periodSeconds": "period_seconds",
    "timeoutSeconds": "timeout_seconds",
    "failureThreshold": "failure_threshold",
    "successThreshold": "success_threshold",
}
