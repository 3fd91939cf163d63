"""From JSON replies to the model. Unknown fields are ignored, so that a newer daemon can be read."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from torpor.model import (
    BuildEvent,
    ExecId,
    ExecInfo,
    FileInfo,
    ProcessInfo,
    SandboxId,
    SandboxInfo,
    SandboxState,
    TemplateInfo,
)
from torpor.model_access import DEFAULT_WORKSPACE
from torpor.model_usage import MachineUsage

Body = Mapping[str, Any]


def sandbox_info(body: Body) -> SandboxInfo:
    """Return the sandbox in `body`."""
    return SandboxInfo(
        id=SandboxId(body["id"]),
        state=SandboxState(body["state"]),
        template=body["template"],
        template_digest=body["template_digest"],
        vcpus=body["vcpus"],
        ram_mib=body["ram_mib"],
        disk_gib=body["disk_gib"],
        network=body["network"],
        env_names=tuple(body["env_names"]),
        metadata=body["metadata"],
        ttl_seconds=body["ttl_seconds"],
        on_timeout=body["on_timeout"],
        created_at=datetime.fromisoformat(body["created_at"]),
        expires_at=_time(body["expires_at"]),
        boot_mode=body["boot_mode"],
        boot_ms=body["boot_ms"],
        driver=body["driver"],
        accel=body["accel"],
        error=body["error"],
        idle_seconds=body["idle_seconds"],
        parent_snapshot=body["parent_snapshot"],
        generation=body["generation"],
        memory_note=body.get("memory_note"),
        health_note=body.get("health_note"),
        ttl_left_seconds=body.get("ttl_left_seconds"),
        workspace=body.get("workspace", DEFAULT_WORKSPACE),
    )


def template_info(body: Body) -> TemplateInfo:
    """Return the template in `body`."""
    return TemplateInfo(
        name=body["name"],
        digest=body["digest"],
        created_at=datetime.fromisoformat(body["created_at"]),
        vcpus=body["vcpus"],
        ram_mib=body["ram_mib"],
        disk_gib=body["disk_gib"],
        size_bytes=body["size_bytes"],
        default_user=body["default_user"],
        default_cwd=body["default_cwd"],
        env=body["env"],
        description=body["description"],
        command=tuple(body.get("command", ())),
    )


def build_event(body: Body) -> BuildEvent:
    """Return the step of a build in `body`."""
    template = body["template"]
    return BuildEvent(
        step=body["step"],
        message=body["message"],
        fraction=body["fraction"],
        template=template_info(template) if template else None,
    )


def exec_info(body: Body) -> ExecInfo:
    """Return the exec in `body`."""
    command = body["command"]
    return ExecInfo(
        exec_id=ExecId(body["exec_id"]),
        command=command if isinstance(command, str) else tuple(command),
        state=body["state"],
        pid=body["pid"],
        user=body["user"],
        cwd=body["cwd"],
        background=body["background"],
        started_at=datetime.fromisoformat(body["started_at"]),
        exit_code=body["exit_code"],
        signal=body["signal"],
        timed_out=body["timed_out"],
        oom_killed=body["oom_killed"],
        duration_ms=body["duration_ms"],
        stdout_bytes=body["stdout_bytes"],
        stderr_bytes=body["stderr_bytes"],
        stdout_path=body["stdout_path"],
        stderr_path=body["stderr_path"],
        terminal=body.get("terminal", False),
        is_idle=body.get("is_idle", False),
    )


def machine_usage(body: Body) -> MachineUsage:
    """Return the usage in `body`."""
    names = {field.name for field in dataclasses.fields(MachineUsage)} - {"since"}
    return MachineUsage(
        since=datetime.fromisoformat(body["since"]), **{name: body[name] for name in names}
    )


def process_info(body: Body) -> ProcessInfo:
    """Return the process in `body`."""
    exec_id = body["exec_id"]
    return ProcessInfo(
        pid=body["pid"],
        ppid=body["ppid"],
        user=body["user"],
        state=body["state"],
        rss_bytes=body["rss_bytes"],
        command=body["command"],
        exec_id=ExecId(exec_id) if exec_id else None,
    )


def file_info(body: Body) -> FileInfo:
    """Return the file in `body`."""
    return FileInfo(
        name=body["name"],
        path=body["path"],
        kind=body["kind"],
        size_bytes=body["size_bytes"],
        mode=int(body["mode"], 8),
        user=body["user"],
        group=body["group"],
        modified_at=datetime.fromisoformat(body["modified_at"]),
        target=body["target"],
    )


def chunk_bytes(body: Body) -> bytes:
    """Return the exact bytes of an output event."""
    exact = body.get("b64")
    return base64.b64decode(exact) if exact else str(body["chunk"]).encode()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
