"""One thing that is asked of a sandbox's task, and how it is answered."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torpor.errors import DaemonUnreachable, InsufficientResources, WrongState
from torpor.model import SandboxInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """Work that waits for its turn, and the future that its caller waits for."""

    work: Callable[[], Coroutine[Any, Any, Any]]
    name: str
    answer: asyncio.Future[Any]
    context: Context = field(default_factory=copy_context)
    """The asker's, for traces."""


async def outcome(work: Coroutine[Any, Any, T]) -> tuple[T | None, Exception | None]:
    """Return the failure of `work` instead of raising it: it belongs to the caller, not to the supervisor."""
    try:
        return await work, None
    except Exception as exc:  # noqa: BLE001 - handed to the caller, who raises it
        return None, _told(exc)


def _told(exc: Exception) -> Exception:
    """Return a full disk as an error of ours."""
    if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
        full = InsufficientResources(
            f"the disk is full: {exc}",
            hint="free disk space, for example delete snapshots that are not needed",
        )
        full.__cause__ = exc
        return full
    return exc


def deleted(info: SandboxInfo, name: str) -> WrongState:
    """Return the answer to what a delete broke off."""
    return WrongState(f"sandbox {info.id} was deleted during its {name}", sandbox_id=info.id)


def stopping(info: SandboxInfo, name: str) -> DaemonUnreachable:
    """Return the answer to what the daemon's end broke off."""
    return DaemonUnreachable(
        f"the daemon stopped during the {name} of sandbox {info.id}",
        hint="the next daemon finishes or undoes it: look at the sandbox again",
        sandbox_id=info.id,
    )
