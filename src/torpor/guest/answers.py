"""What a guest answers, checked and turned into our own values. Nothing in it is believed unseen."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast, get_args

from torpor.errors import (
    CommandLost,
    Conflict,
    GuestFailed,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OperationTimeout,
    PortClosed,
    TorporError,
)
from torpor.model import (
    ExecId,
    ExecInfo,
    ExecState,
    FileInfo,
    FileKind,
    GuestInfo,
    ProcessInfo,
)
from torpor.model_file_events import FileEvent, FileEventType
from torpor.model_ports import PortInfo

_ERRORS: Final[Mapping[str, type[TorporError]]] = {
    "invalid": InvalidRequest,
    "not_found": NotFound,
    "conflict": Conflict,
    "limit": LimitExceeded,
    "timeout": OperationTimeout,
    "lost": CommandLost,
    "refused": PortClosed,
    "failed": GuestFailed,
}
_OURS: Final = frozenset({"message", "hint", "self", "retry_after_seconds"})
"""Facts that mean something to the daemon itself, which a guest does not say."""
_MAX_TEXT: Final = 4096
_HAPPENS: Final = frozenset(FileEventType) - {FileEventType.MISSED}
_MAX_COMMAND: Final = 2 << 20
_LAST_SECOND: Final = 253402300799
"""The last second of the year 9999."""


def error_of(error: object) -> TorporError:
    """Return the error that a CLOSE carries; an unknown code is a `GuestFailed`."""
    if not isinstance(error, dict):
        return GuestFailed("the guest agent closed a stream with neither result nor error")
    cls = _ERRORS.get(str(error.get("code")), GuestFailed)
    hint, facts = error.get("hint"), error.get("facts")
    clean: dict[str, Any] = (
        {
            str(key)[:64]: value if isinstance(value, int) else value[:_MAX_TEXT]
            for key, value in list(facts.items())[:16]
            if isinstance(value, (int, str)) and key not in _OURS
        }
        if isinstance(facts, dict)
        else {}
    )
    return cls(
        str(error.get("message") or "the guest agent gave no reason")[:_MAX_TEXT],
        hint=str(hint)[:_MAX_TEXT] if hint else None,
        **clean,
    )


def guest_info(answer: Mapping[str, Any]) -> GuestInfo:
    """Return what the agent's HELLO says of it."""
    capabilities = answer.get("capabilities")
    return GuestInfo(
        agent_version=_text(answer, "agent_version", 64),
        protocol_version=_whole(answer, "protocol"),
        capabilities=frozenset(
            str(item)[:64] for item in (capabilities if isinstance(capabilities, list) else [])[:64]
        ),
        instance=_text(answer, "instance", 64),
        agent_pid=_whole(answer, "pid"),
    )


def exec_info(answer: object, exec_id: str | None = None) -> ExecInfo:
    """Return what is so about an exec; with `exec_id` it must be that one."""
    item = _object(answer)
    state = _text(item, "state", 16)
    if state not in get_args(ExecState):
        raise _nonsense(f"an exec is {state!r}")
    found = _text(item, "exec_id", 64)
    if exec_id is not None and found != exec_id:
        raise _nonsense(f"asked for exec {exec_id}, told of {found}")
    exit_code = _whole_or_none(item, "exit_code")
    if (exit_code is None) == (state == "exited") or not 0 <= (exit_code or 0) <= 255:
        raise _nonsense(f"an exec that is {state} has exit code {exit_code}")
    return ExecInfo(
        exec_id=ExecId(found),
        command=_command(item),
        state=cast("ExecState", state),
        pid=_whole_or_none(item, "pid"),
        user=_text(item, "user", _MAX_TEXT),
        cwd=_text(item, "cwd", _MAX_TEXT),
        background=item.get("background") is True,
        started_at=_time(item.get("started_at")),
        exit_code=exit_code,
        signal=_whole_or_none(item, "signal"),
        timed_out=item.get("timed_out") is True,
        oom_killed=item.get("oom_killed") is True,
        duration_ms=_whole_or_none(item, "duration_ms"),
        stdout_bytes=_whole(item, "stdout_bytes"),
        stderr_bytes=_whole(item, "stderr_bytes"),
        stdout_path=_text(item, "stdout_path", _MAX_TEXT),
        stderr_path=_text(item, "stderr_path", _MAX_TEXT),
        terminal=item.get("terminal") is True,
        is_idle=item.get("is_idle") is True,
    )


def process_info(answer: object) -> ProcessInfo:
    """Return one process."""
    item = _object(answer)
    exec_id = item.get("exec_id")
    return ProcessInfo(
        pid=_whole(item, "pid"),
        ppid=_whole(item, "ppid"),
        user=_text(item, "user", _MAX_TEXT),
        state=_text(item, "state", 8),
        rss_bytes=_whole(item, "rss_bytes"),
        command=_text(item, "command", _MAX_TEXT),
        exec_id=ExecId(exec_id[:64]) if isinstance(exec_id, str) else None,
    )


def port_info(answer: object) -> PortInfo:
    """Return one listener."""
    item = _object(answer)
    port, address = _whole(item, "port"), _text(item, "address", 64)
    if not 1 <= port <= 65535:
        raise _nonsense(f"something listens on port {port}")
    try:
        ipaddress.ip_address(address)
    except ValueError as exc:
        raise _nonsense(f"something listens on {address!r}") from exc
    name = item.get("process")
    return PortInfo(
        port=port,
        address=address,
        user=_text(item, "user", _MAX_TEXT),
        pid=_whole_or_none(item, "pid"),
        process=name[:64] if isinstance(name, str) else None,
    )


def file_info(answer: object, *, below: str | None = None, within: str | None = None) -> FileInfo:
    """Return what a path is; it must lie anywhere `below` that folder, or directly `within` that one."""
    item = _object(answer)
    name, path = _text(item, "name", _MAX_TEXT), _text(item, "path", 2 * _MAX_TEXT)
    kind = _text(item, "kind", 16)
    if kind not in get_args(FileKind):
        raise _nonsense(f"a path is a {kind!r}")
    _check_place(name, path, below, within)
    target = item.get("target")
    return FileInfo(
        name=name,
        path=path,
        kind=cast("FileKind", kind),
        size_bytes=_whole(item, "size"),
        mode=_whole(item, "mode") & 0o7777,
        user=_text(item, "user", _MAX_TEXT),
        group=_text(item, "group", _MAX_TEXT),
        modified_at=_time(_number(item, "mtime_ns") / 1e9),
        target=target[:_MAX_TEXT] if isinstance(target, str) else None,
    )


def file_event(answer: object) -> FileEvent:
    """Return what happened to a name below a folder."""
    item = _object(answer)
    if item.get("missed") is True:
        return FileEvent(name="", type=FileEventType.MISSED)
    name, kind = _text(item, "name", _MAX_TEXT), _text(item, "kind", 16)
    if kind not in _HAPPENS:
        raise _nonsense(f"what happened to a file is {kind!r}")
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise _nonsense(f"{name[:200]!r} is no name below a folder")
    return FileEvent(name=name, type=FileEventType(kind))


def offset(answer: Mapping[str, Any], key: str) -> int:
    """Return a place in a stream of bytes."""
    return _whole(answer, key)


def count(answer: Mapping[str, Any], key: str) -> int:
    """Return a number of things."""
    return _whole(answer, key)


def _check_place(name: str, path: str, below: str | None, within: str | None) -> None:
    if "\0" in path or not path.startswith("/") or name != (path.rstrip("/").split("/")[-1] or "/"):
        raise _nonsense(f"the name {name[:200]!r} is not that of path {path[:200]!r}")
    folder = below if below is not None else within
    if folder is None:
        return
    root = folder.rstrip("/") + "/"
    rest = path[len(root) :].split("/")
    if (
        not path.startswith(root)
        or any(part in ("", ".", "..") for part in rest)
        or (within is not None and len(rest) != 1)
    ):
        raise _nonsense(f"{path[:200]!r} is not in folder {folder!r}")


def _object(answer: object) -> Mapping[str, Any]:
    if not isinstance(answer, dict):
        raise _nonsense("an answer is missing")
    return answer


def _text(item: Mapping[str, Any], key: str, limit: int) -> str:
    value = item.get(key)
    if not isinstance(value, str) or len(value) > limit:
        raise _nonsense(f"{key} is no text of at most {limit} characters")
    return value


def _number(item: Mapping[str, Any], key: str) -> int:
    value = item.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise _nonsense(f"{key} is no whole number of 64 bits")
    return value


def _whole(item: Mapping[str, Any], key: str) -> int:
    value = _number(item, key)
    if value < 0:
        raise _nonsense(f"{key} is below 0")
    return value


def _whole_or_none(item: Mapping[str, Any], key: str) -> int | None:
    return None if item.get(key) is None else _whole(item, key)


def _command(item: Mapping[str, Any]) -> str | tuple[str, ...]:
    value = item.get("command")
    if isinstance(value, str) and len(value) <= _MAX_COMMAND:
        return value
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise _nonsense("a command is neither text nor texts")


def _time(seconds: object) -> datetime:
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or seconds != seconds:
        raise _nonsense("a time is no number")
    return datetime.fromtimestamp(max(0.0, min(float(seconds), _LAST_SECOND)), UTC)


def _nonsense(what: str) -> GuestFailed:
    return GuestFailed(f"the guest agent's answer makes no sense: {what}")
