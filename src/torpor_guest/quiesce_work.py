"""What a hook does in its phases, whatever kind it is."""

from __future__ import annotations

from typing import Protocol

TAIL_SHOWN = 400


class HookFailed(Exception):
    """Raised when a phase of a hook failed."""


class NothingThere(Exception):
    """Raised when there is nothing for a hook to hold."""


class Work(Protocol):
    """The phases of one hook. Each raises `HookFailed` or `AgentError`, or returns what it has to say."""

    @property
    def has_ended(self) -> bool:
        """Whether a process that holds by living has ended."""
        ...

    async def prepare(self, limit_s: float) -> str:
        """Do what takes time. Raises `NothingThere` too."""
        ...

    async def hold(self, limit_s: float) -> str:
        """Take hold."""
        ...

    async def confirm(self, limit_s: float) -> None:
        """Raise unless it holds still."""
        ...

    async def release(self, limit_s: float, outcome: str, failed_phase: str) -> None:
        """Let go; nothing of a hold runs after that, also when it raises."""
        ...


def told(what: str, tail: str) -> str:
    """Return a sentence with the end of what a program wrote."""
    return f"{what}: {tail[-TAIL_SHOWN:]}" if tail else what
