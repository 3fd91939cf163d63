"""`Change`: the synchronous face of `AsyncChange`, which says more of each call."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from typing_extensions import override

from torpor.model_changes import (
    ChangeEvent,
    ChangeId,
    ChangeInfo,
    ChangeState,
    ChangeVerdict,
)
from torpor.sdk.change_results import ChangeReport
from torpor.sdk.changes import AsyncChange, Progress
from torpor.sdk.client import Client
from torpor.sdk.loop import loop_thread

INTERRUPTED_S = 20.0
"""What an interrupted block waits at most: the daemon undoes the change, whether anybody looks on or not."""


class Change:
    """One change. Made by `Sandbox.change`, `get` or `list`.

    With `run` it is a command: `wait` begins it and returns when it is decided. Without, it is a block: what happens
    inside `with` is the change, an exception undoes it and is raised on, and so does a process that dies. Ctrl-C is
    such an exception; a second one, while the change is undone, does not wait for that: the daemon goes on with it.
    """

    def __init__(self, change: AsyncChange) -> None:
        self._change = change

    @classmethod
    def get(cls, change_id: str, *, client: Client | None = None) -> Self:
        """Return the change with that id, and its report. Raises `NotFound`."""
        return cls(loop_thread.run(AsyncChange.get(change_id, client=client)))

    @classmethod
    def list(
        cls, *, sandbox_id: str | None = None, limit: int = 100, client: Client | None = None
    ) -> builtins.list[Self]:
        """Return changes, newest first: all, or those of one sandbox, which may be deleted."""
        found = AsyncChange.list(sandbox_id=sandbox_id, limit=limit, client=client)
        return [cls(change) for change in loop_thread.run(found)]

    @override
    def __repr__(self) -> str:
        return repr(self._change).replace("AsyncChange", "Change", 1)

    @property
    def info(self) -> ChangeInfo:
        """What was so when the daemon was last heard of."""
        return self._change.info

    @property
    def id(self) -> ChangeId:
        """The change's id, `chg_…`."""
        return self._change.id

    @property
    def state(self) -> ChangeState:
        """Where it was when the daemon was last heard of."""
        return self._change.state

    @property
    def verdict(self) -> ChangeVerdict | None:
        """`kept`, `rolled_back` or `inconclusive`; None while it is open, and when it failed."""
        return self._change.verdict

    @property
    def why(self) -> str:
        """Why it ended so, in one sentence."""
        return self._change.why

    @property
    def report(self) -> ChangeReport | None:
        """The evidence, as it was at the end, or when `refresh` was called; None before that."""
        return self._change.report

    def refresh(self) -> ChangeInfo:
        """Ask how the change stands, and for its report."""
        return loop_thread.run(self._change.refresh())

    def html(self) -> str:
        """Return the report as one HTML page that needs nothing else."""
        return loop_thread.run(self._change.html())

    def check(self) -> Self:
        """Return this change if it was kept, or is on probation. Raises `ChangeRolledBack`, `ChangeFailed`."""
        self._change.check()
        return self

    def start(self) -> Self:
        """Begin the change and return; what becomes of it goes on in the daemon."""
        loop_thread.run(self._change.start())
        return self

    def wait(self, progress: Progress | None = None) -> Self:
        """Return when the change is over, begun now if it was not. With a probation that may take as long.

        A caller that is interrupted undoes nothing: the change goes on in the daemon.
        """
        loop_thread.run(self._change.wait(progress))
        return self

    def confirm(self, *, by: str = "") -> Self:
        """Keep a change that is on probation, now. Raises `WrongState`, and `Conflict` when it came too late."""
        loop_thread.run(self._change.confirm(by=by))
        return self

    def rollback(self, why: str = "", *, by: str = "") -> Self:
        """Undo a change that is open, and return when it is undone. Raises `WrongState` when it is over."""
        loop_thread.run(self._change.rollback(why, by=by))
        return self

    def events(self) -> Iterator[ChangeEvent]:
        """Yield what happens to the change until it is over."""
        return loop_thread.iterate(self._change.events())

    def __enter__(self) -> Self:
        loop_thread.run(self._change.__aenter__(), cleanup_limit_s=INTERRUPTED_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop_thread.run(
            self._change.__aexit__(kind, error, traceback), cleanup_limit_s=INTERRUPTED_S
        )
