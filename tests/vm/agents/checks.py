"""The checks files of the fake agents: what each of them needs to be itself."""

from __future__ import annotations

from typing import Any

H = "/home/agent/.hermes"
CONTROL = {"http": "http://127.0.0.1:9999/health"}
DEFAULTS = {"timeoutSeconds": 90}
SOON = {"failureThreshold": 30, "periodSeconds": 1}
"""For what may still be starting after a boot."""


def _turn(command: str, user: str, **more: Any) -> dict[str, Any]:
    return {"exec": command, "user": user, "stdout": ["ready"], "control": CONTROL, **more}


def _message(port: int) -> dict[str, Any]:
    """A message that comes in by a channel, as the gateway gets it."""
    return _turn(f"curl -sS --fail-with-body -d hi http://127.0.0.1:{port}/message", "root")


HERMES: dict[str, Any] = {
    "defaults": DEFAULTS,
    "required": {
        "service": {
            "hermes-gateway": {
                "running": True,
                "restarts": {"le": 0},
                "periodSeconds": 2,
                "successThreshold": 4,  # it stays so for a while
            }
        },
        "http": {"http://127.0.0.1:8642/health": {"status": 200}},
        "command": {
            "imports": {"exec": f"{H}/hermes-agent/venv/bin/python -c 'import fakedep'"},
            "canary job": {"exec": "hermes cron canary", "user": "agent"},
            "notes server": {"exec": "hermes mcp test notes", "user": "agent"},
            "recall": {"exec": "hermes recall alice", "user": "agent", "stdout": ["tea"]},
            "growth": {"exec": f"test $(du -sm {H} | cut -f 1) -lt 200"},
        },
        "sqlite": {f"{H}/state.db": {"min-rows": {"sessions": 40}, "write-canary": True}},
        "inventory": {
            "skills": "superset",
            "tools": "superset",
            "jobs": "equal",
            "env": "superset",
        },
        "turn": {
            "new": _turn("hermes chat -q hi", "agent", timeoutSeconds=10),
            "resumed": _turn("hermes chat --resume s3 -q hi", "agent"),
            "message": _message(8642),
        },
    },
}
AGENT_ZERO: dict[str, Any] = {
    "defaults": DEFAULTS,
    "required": {
        "service": {
            "fake-provider": {"running": True, **SOON},
            "agent-zero": {"running": True, **SOON},
        },
        "file": {"/a0/usr/settings.json": {"exists": True}},
        "command": {
            "recall": {"exec": "a0 recall alice", "stdout": ["tea"]},
            "own snapshot": {"exec": "a0 time-travel snapshot"},
        },
        "inventory": {"memory": "superset", "skills": "superset", "jobs": "equal"},
        "turn": {"new": _turn("a0 chat -q hi", "root")},
    },
}
OPENCLAW: dict[str, Any] = {
    "defaults": DEFAULTS,
    "required": {
        "service": {"openclaw-gateway": {"running": True}},
        "command": {"whatsapp": {"exec": "openclaw channels auth whatsapp", "user": "agent"}},
        "sqlite": {"/home/agent/.openclaw/state/openclaw.sqlite": {"min-rows": {"sessions": 40}}},
        "inventory": {"settings": "equal", "tools": "superset", "jobs": "equal"},
        "turn": {
            "new": _turn("openclaw chat -q hi", "agent"),
            "message": _message(18789),
        },
    },
}


def only(checks: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    """Return a checks file with these of its checks (`required/KIND:NAME`), so that no other can find anything."""
    required = {
        kind: {name: check for name, check in found.items() if f"required/{kind}:{name}" in keys}
        for kind, found in checks["required"].items()
    }
    return {**checks, "required": {kind: found for kind, found in required.items() if found}}
