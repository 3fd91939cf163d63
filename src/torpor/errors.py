"""Every error that Torpor raises on purpose, as one tree.

    TorporError
    ├── InvalidRequest            400  the request itself cannot be right
    ├── NotAuthenticated          401  no valid token
    ├── NotAllowed                403  the token is valid, but not for this
    ├── NotFound                  404  no such sandbox, template, exec or path
    ├── Conflict                  409  the name or place is taken
    │   ├── WrongState            409  the object exists but its state forbids the request
    │   ├── GenerationChanged     409  the machine was put back meanwhile; what was asked of it is void
    │   ├── SnapshotUnusable      409  a snapshot's RAM cannot go on on this host
    │   ├── KernelMissing         409  the sandbox's template has no interpreter for such code
    │   ├── VolumeHeld            409  a volume is attached in a way that forbids this
    │   ├── OutsideArchive        409  a database's archived log does not reach that time
    │   └── Busy                  409  another request holds the object; try again
    ├── KeyReused                 422  an idempotency key came with another request before
    ├── LimitExceeded             413  a size, count or length over its limit
    ├── RateLimited               429  too many requests; try again
    ├── InsufficientResources     507  the host has no memory or disk for it; nothing was made
    ├── HostNotReady              503  something on the host is missing or too old
    ├── DaemonUnreachable         503  no daemon answers
    ├── OperationTimeout          504  it took longer than allowed
    ├── VmmFailed                 500  the machine monitor failed or died
    ├── GuestFailed               502  the guest answered with an error
    │   ├── DatabaseFull          507  a database is down, since its volume has no room for it to start
    │   ├── GuestUnreachable      502  the guest does not answer
    │   └── QuiesceFailed         502  the guest's programs could not be brought to rest
    ├── PortClosed                502  nothing in the machine takes connections on that port
    ├── CommandLost               502  a command's end cannot be known
    ├── CommandFailed             422  a command ended with a status other than 0 (`check=True`)
    ├── CheckFailed               422  a required check fails
    ├── CheckInconclusive         422  it could not be told whether a required check passes
    ├── ChangeRolledBack          422  a change was rolled back
    ├── ChangeFailed              500  a change could not be begun, or not be undone
    ├── BuildFailed               500  a template could not be built
    ├── NotOffered                501  this daemon does not have what is asked for
    └── DataDamaged               500  stored data is not what was written

Each class owns a stable `code`, an HTTP status, an exit code and whether a repeat of the same request
can succeed. A message names the object, what is so and what was wanted; `hint` says what to do; `facts`
holds the same for machines. Messages are never docstrings, so `python -OO` keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

__all__ = [
    "BuildFailed",
    "Busy",
    "ChangeFailed",
    "ChangeRolledBack",
    "CheckFailed",
    "CheckInconclusive",
    "CommandFailed",
    "CommandLost",
    "Conflict",
    "DaemonUnreachable",
    "DataDamaged",
    "DatabaseFull",
    "DrillFailed",
    "GenerationChanged",
    "GuestFailed",
    "GuestUnreachable",
    "HostNotReady",
    "InsufficientResources",
    "InvalidRequest",
    "KernelMissing",
    "KeyReused",
    "LastGoodSnapshot",
    "LimitExceeded",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "NotOffered",
    "OperationTimeout",
    "OutsideArchive",
    "PortClosed",
    "QuiesceFailed",
    "RateLimited",
    "SnapshotUnusable",
    "TorporError",
    "VmmFailed",
    "VolumeHeld",
    "WrongState",
    "catalogue",
    "error_from_wire",
    "error_to_wire",
]


class TorporError(Exception):
    """Base of every error this project raises on purpose; raised itself only for faults of ours."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, /, *, hint: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.hint = hint
        self.facts: dict[str, object] = facts

    @property
    def message(self) -> str:
        """The message alone, without the hint."""
        return str(self.args[0]) if self.args else ""


class InvalidRequest(TorporError):
    """Raised when a value in the request cannot be right; nothing was done."""

    code, http_status, exit_code = "request.invalid", 400, 64


class NotAuthenticated(TorporError):
    """Raised when the daemon wants a token and the request has none that is valid."""

    code, http_status, exit_code = "request.not_authenticated", 401, 77


class NotAllowed(TorporError):
    """Raised when a token is valid but its scope or workspace does not allow the request; nothing was done."""

    code, http_status, exit_code = "request.not_allowed", 403, 93


class NotFound(TorporError):
    """Raised when the sandbox, template, exec or path named does not exist."""

    code, http_status, exit_code = "object.not_found", 404, 66


class Conflict(TorporError):
    """Raised when a name or place is taken, or the object is needed by another."""

    code, http_status, exit_code = "object.conflict", 409, 73


class WrongState(Conflict):
    """Raised when the object exists but is not in a state that allows the request."""

    code, http_status, exit_code = "object.wrong_state", 409, 65


class LastGoodSnapshot(Conflict):
    """Raised when the last snapshot of a sandbox that is known to be good would go, which needs `force`."""

    code, http_status, exit_code = "snapshot.last_good", 409, 106


class GenerationChanged(Conflict):
    """Raised to those who were using a machine that was rolled back, slept or was replaced meanwhile."""

    code, http_status, exit_code = "sandbox.generation_changed", 409, 88


class SnapshotUnusable(Conflict):
    """Raised when a snapshot's RAM was saved by another driver, version or CPU than this host has."""

    code, http_status, exit_code = "snapshot.unusable", 409, 89


class KernelMissing(Conflict):
    """Raised when a sandbox has no interpreter for the language of a code context; the hint names a template that has."""

    code, http_status, exit_code = "context.kernel_missing", 409, 104


class VolumeHeld(Conflict):
    """Raised when a volume is attached and so cannot be had, or be done to, as was asked; facts name the holders."""

    code, http_status, exit_code = "volume.held", 409, 103


class OutsideArchive(Conflict):
    """Raised when a database is wanted as of a time that its snapshots and archived log do not reach."""

    code, http_status, exit_code = "database.outside_archive", 409, 114


class Busy(Conflict):
    """Raised when another request holds the object; the same request can succeed later."""

    code, http_status, exit_code, retryable = "object.busy", 409, 75, True


class KeyReused(TorporError):
    """Raised when an idempotency key comes with a request that is not the one it came with first; nothing was done."""

    code, http_status, exit_code = "request.key_reused", 422, 95


class LimitExceeded(TorporError):
    """Raised when a size, count or length is over its limit."""

    code, http_status, exit_code = "request.limit_exceeded", 413, 68


class RateLimited(TorporError):
    """Raised when a client sends too many requests, or the daemon has too much to do at once; nothing was done."""

    code, http_status, exit_code, retryable = "request.rate_limited", 429, 94, True


class InsufficientResources(TorporError):
    """Raised when the host has no memory or disk for the request; nothing was made."""

    code, http_status, exit_code, retryable = "host.insufficient_resources", 507, 69, True


class HostNotReady(TorporError):
    """Raised when something on the host is missing or too old; the hint has the command that mends it."""

    code, http_status, exit_code = "host.not_ready", 503, 78


class DaemonUnreachable(TorporError):
    """Raised by the client when no daemon answers and none could be started."""

    code, http_status, exit_code, retryable = "daemon.unreachable", 503, 79, True


class OperationTimeout(TorporError):
    """Raised when an operation took longer than allowed; facts say what was done about it."""

    code, http_status, exit_code, retryable = "operation.timeout", 504, 80, True


class VmmFailed(TorporError):
    """Raised when the machine monitor could not be started, refused a command or died."""

    code, http_status, exit_code = "vmm.failed", 500, 81


class GuestFailed(TorporError):
    """Raised when the guest agent carried out a request and it failed there."""

    code, http_status, exit_code = "guest.failed", 502, 82


class GuestUnreachable(GuestFailed):
    """Raised when the guest agent does not answer or the channel to it was cut."""

    code, http_status, exit_code, retryable = "guest.unreachable", 502, 83, True


class DatabaseFull(GuestFailed):
    """Raised when a database is down because its volume is full; what was committed is there when it has grown."""

    code, http_status, exit_code = "database.full", 507, 119


class QuiesceFailed(GuestFailed):
    """Raised when a required hook failed, so that no `application` snapshot was taken; facts name it and its output."""

    code, http_status, exit_code = "guest.quiesce_failed", 502, 92


class PortClosed(TorporError):
    """Raised when nothing in the machine takes connections on a port, or what took one broke it off."""

    code, http_status, exit_code, retryable = "port.closed", 502, 111, True


class CommandLost(TorporError):
    """Raised when a command was started and its end cannot be known; it is never invented."""

    code, http_status, exit_code = "command.lost", 502, 84


class CommandFailed(TorporError):
    """Raised for `check=True` when a command ended with a status other than 0."""

    code, http_status, exit_code = "command.failed", 422, 85


class CheckFailed(TorporError):
    """Raised by `CheckReport.check` when a required check fails; also the exit code of `torpor check run` then."""

    code, http_status, exit_code = "check.failed", 422, 90


class CheckInconclusive(TorporError):
    """Raised by `CheckReport.check` when nothing fails but a required check could not be told."""

    code, http_status, exit_code, retryable = "check.inconclusive", 422, 91, True


class ChangeRolledBack(TorporError):
    """Raised by `Change.check` when a change was rolled back; also the exit code of `torpor change` then."""

    code, http_status, exit_code = "change.rolled_back", 422, 96


class ChangeFailed(TorporError):
    """Raised when a change could not be begun, or could not be undone; the message says which."""

    code, http_status, exit_code = "change.failed", 500, 97


class DrillFailed(TorporError):
    """Raised when a drill showed that a snapshot does not come back as it should."""

    code, http_status, exit_code = "drill.failed", 422, 107


class BuildFailed(TorporError):
    """Raised when a template could not be built; facts have the step and the end of its log."""

    code, http_status, exit_code = "template.build_failed", 500, 86


class NotOffered(TorporError):
    """Raised when what is asked for is something that this daemon does not have; nothing was done."""

    code, http_status, exit_code = "request.not_offered", 501, 118


class DataDamaged(TorporError):
    """Raised when stored data is not what was written; nothing was changed."""

    code, http_status, exit_code = "data.damaged", 500, 87


def catalogue() -> Iterator[type[TorporError]]:
    """Yield every error class, the base first."""
    yield TorporError
    pending = list(TorporError.__subclasses__())
    while pending:
        found = pending.pop(0)
        if found.__module__ == __name__:
            yield found
        pending.extend(found.__subclasses__())


def error_to_wire(error: TorporError) -> dict[str, object]:
    """Return the flat JSON object that the REST API sends for `error`."""
    return {
        "error": error.message,
        "code": error.code,
        "hint": error.hint,
        "retryable": error.retryable,
        "facts": {key: _plain(value) for key, value in error.facts.items()},
    }


def error_from_wire(body: Mapping[str, Any]) -> TorporError:
    """Return the error that `error_to_wire` described; an unknown code becomes a plain `TorporError`."""
    by_code = {found.code: found for found in catalogue()}
    cls = by_code.get(str(body.get("code")), TorporError)
    facts = body.get("facts")
    clean = (
        {k: v for k, v in facts.items() if k not in ("hint", "self")}
        if isinstance(facts, dict)
        else {}
    )
    hint = body.get("hint")
    return cls(str(body.get("error") or "unknown error"), hint=str(hint) if hint else None, **clean)


def _plain(value: object) -> object:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    return str(value)
