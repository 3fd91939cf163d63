"""Errors that the agent answers with: a code the host knows, and words."""

from __future__ import annotations

import errno
import os
from typing import Any

INVALID = "invalid"
NOT_FOUND = "not_found"
CONFLICT = "conflict"
LIMIT = "limit"
TIMEOUT = "timeout"
LOST = "lost"
REFUSED = "refused"
"""Nothing in the machine takes the connection, or what took it broke it off."""
FAILED = "failed"

_BY_ERRNO = {
    errno.ENOENT: NOT_FOUND,
    errno.EEXIST: CONFLICT,
    errno.ENOTEMPTY: CONFLICT,
    errno.EBUSY: CONFLICT,
    errno.ENOTDIR: INVALID,
    errno.EISDIR: INVALID,
    errno.EINVAL: INVALID,
    errno.ELOOP: INVALID,
    errno.EXDEV: INVALID,
    errno.ENAMETOOLONG: INVALID,
    errno.E2BIG: LIMIT,
}


class AgentError(Exception):
    """Raised when a request cannot be carried out; sent to the host as it is."""

    def __init__(self, code: str, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.facts = facts

    def to_wire(self) -> dict[str, Any]:
        """Return the error as a CLOSE carries it."""
        return {
            "code": self.code,
            "message": str(self),
            "hint": self.hint,
            "facts": self.facts,
        }


def from_os(exc: OSError, what: str) -> AgentError:
    """Return the error for a refusal by the kernel while doing `what`."""
    number = exc.errno or 0
    return AgentError(
        _BY_ERRNO.get(number, FAILED),
        f"{what}: {exc.strerror or (os.strerror(number) if number else exc)}",
        errno=name_of(exc),
    )


def name_of(exc: OSError) -> str:
    """Return the kernel's name for the refusal, such as EIO."""
    return errno.errorcode.get(exc.errno or 0, "")
