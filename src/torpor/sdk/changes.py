"""`AsyncChange`: a transaction on a sandbox, as an object and as a context manager."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any, Self

from typing_extensions import override

from torpor.base.aio import Supervisor, closing, finish
from torpor.errors import (
    ChangeFailed,
    ChangeRolledBack,
    Conflict,
    DaemonUnreachable,
    InvalidRequest,
    OperationTimeout,
    TorporError,
    WrongState,
    error_from_wire,
)
from torpor.model import SandboxId
from torpor.model_changes import (
    ENDED,
    ChangeEvent,
    ChangeId,
    ChangeInfo,
    ChangeState,
    ChangeVerdict,
)
from torpor.sdk.change_results import ChangeOptions, ChangeReport
from torpor.sdk.client import Client, Connection, connection, quote_part, raw_bytes, resolved
from torpor.sdk.sse import sse_events

Progress = Callable[[ChangeEvent], object]
"""Called with each event as it comes."""

UNDO_LIMIT_S = 900.0
"""For a change whose block failed to be undone."""
_RENEWALS = 3
_RETRY_S = 1.0
_GIVES_UP_S = 120.0
_PASSING = (DaemonUnreachable, OperationTimeout)
_STOPS = ENDED | {ChangeState.PROBATION}
"""Where a block's end returns."""


class AsyncChange:
    """One change. Made by `AsyncSandbox.change`, `get` or `list`.

    With `run` it is a command: `wait` begins it and returns when it is decided. Without, it is a block: what happens
    inside `async with` is the change, an exception undoes it and is raised on, and so does a client that dies.
    """

    def __init__(
        self,
        sandbox_id: str,
        reason: str,
        options: ChangeOptions | None,
        client: Client | None,
        info: ChangeInfo | None = None,
    ) -> None:
        self._sandbox_id = SandboxId(sandbox_id)
        self._reason = reason
        self._options = options
        self._client = resolved(client)
        self._info = info
        self._report: ChangeReport | None = None
        self._supervisor = Supervisor(
            lambda _name, _error: None
        )  # the change itself says what came of it

    @classmethod
    async def get(cls, change_id: str, *, client: Client | None = None) -> Self:
        """Return the change with that id, and its report. Raises `NotFound`."""
        body = await connection(client).call("GET", f"/v1/changes/{quote_part(change_id)}")
        info = ChangeInfo.from_json(body)
        found = cls(info.sandbox_id, info.reason, None, client, info)
        await found.refresh()
        return found

    @classmethod
    async def list(
        cls, *, sandbox_id: str | None = None, limit: int = 100, client: Client | None = None
    ) -> builtins.list[Self]:
        """Return changes, newest first: all, or those of one sandbox, which may be deleted."""
        query = {"sandbox_id": sandbox_id, "limit": limit}
        body = await connection(client).call("GET", "/v1/changes", query=query)
        found = [ChangeInfo.from_json(item) for item in body["changes"]]
        return [cls(info.sandbox_id, info.reason, None, client, info) for info in found]

    @override
    def __repr__(self) -> str:
        state = self._info.state if self._info else "not begun"
        name = repr(self._reason) if self._info is None else self._info.id
        return f"<{type(self).__name__} {name} {state}>"

    # ---- what is so ----

    @property
    def info(self) -> ChangeInfo:
        """What was so when the daemon was last heard of. Raises `TorporError` before the change has begun."""
        if self._info is None:
            raise TorporError(
                "the change has not begun", hint="call start() or wait(), or enter it"
            )
        return self._info

    @property
    def id(self) -> ChangeId:
        """The change's id, `chg_…`."""
        return self.info.id

    @property
    def state(self) -> ChangeState:
        """Where it was when the daemon was last heard of."""
        return self.info.state

    @property
    def verdict(self) -> ChangeVerdict | None:
        """`kept`, `rolled_back` or `inconclusive`; None while it is open, and when it failed."""
        return self.info.verdict

    @property
    def why(self) -> str:
        """Why it ended so, in one sentence."""
        return self.info.why

    @property
    def report(self) -> ChangeReport | None:
        """The evidence, as it was at the end, or when `refresh` was called; None before that."""
        return self._report

    async def refresh(self) -> ChangeInfo:
        """Ask how the change stands, and for its report."""
        body = await self._connection.call("GET", self._path)
        data = await self._connection.call("GET", f"{self._path}/report")
        self._info = ChangeInfo.from_json(body)
        self._report = ChangeReport(data, await self._rendered("text"))
        return self._info

    async def html(self) -> str:
        """Return the report as one HTML page that needs nothing else."""
        return await self._rendered("html")

    def check(self) -> Self:
        """Return this change if it was kept, or is on probation.

        Raises:
            ChangeRolledBack: it was rolled back; facts have the reasons.
            ChangeFailed: it could not be begun, or not be undone.
        """
        info = self.info
        facts = {"change_id": info.id, "ending": info.ending}
        if info.state is ChangeState.ROLLED_BACK:
            raise ChangeRolledBack(
                f"change {info.id} was rolled back: {info.why}",
                hint=f"see torpor report {info.id}",
                **facts,
            )
        if info.state is ChangeState.FAILED:
            raise ChangeFailed(
                f"change {info.id} failed: {info.why}", hint=f"see torpor report {info.id}", **facts
            )
        return self

    # ---- a command ----

    async def start(self) -> Self:
        """Begin the change and return; what becomes of it goes on in the daemon.

        Raises:
            InvalidRequest: a value, the checks file or the profile cannot be right.
            NotFound: there is no such checks file, sandbox or profile.
            Conflict: the sandbox is being changed already, or the target was rolled back before.
            WrongState: the sandbox neither runs nor sleeps.
            InsufficientResources, LimitExceeded: there is no room for the snapshot; nothing was begun.
        """
        if self._options is None or self._info is not None:
            raise WrongState("the change has begun already", hint="make another")
        body = await asyncio.to_thread(self._options.body, self._reason)
        path = f"/v1/sandboxes/{quote_part(self._sandbox_id)}/changes"
        self._info = ChangeInfo.from_json(await self._connection.call("POST", path, body=body))
        return self

    async def wait(self, progress: Progress | None = None) -> Self:
        """Return when the change is over, begun now if it was not. With a probation that may take as long.

        A caller that goes away undoes nothing: the change goes on in the daemon.
        """
        if self._info is None:
            if self._options is not None and self._options.run is None:
                raise InvalidRequest(
                    "a change without run= is what happens inside a with block", hint="with it: …"
                )
            await self.start()
        await self._follow(ENDED, progress)
        await self.refresh()
        return self

    async def confirm(self, *, by: str = "") -> Self:
        """Keep a change that is on probation, and return when it is kept; a look that is under way decides first.

        Raises:
            WrongState: it is not on probation.
            Conflict: it came too late.
        """
        body = {"by": by}
        self._info = ChangeInfo.from_json(
            await self._connection.call("POST", f"{self._path}/confirm", body=body)
        )
        if self._info.is_open:
            await self._follow(ENDED)
        await self.refresh()
        if self.state is not ChangeState.KEPT:
            raise Conflict(
                f"it came too late: change {self.id} is {self.state}: {self.why}", change_id=self.id
            )
        return self

    async def rollback(self, why: str = "", *, by: str = "") -> Self:
        """Undo a change that is open, and return when it is undone. Raises `WrongState` when it is over."""
        body = {"why": why, "by": by}
        await self._connection.call("POST", f"{self._path}/rollback", body=body)
        return await self.wait()

    async def events(self) -> AsyncGenerator[ChangeEvent, None]:
        """Yield what happens to the change until it is over; a daemon that was restarted is found again.

        Events that an earlier daemon told are not told again; the state always is.
        """
        after, gives_up_at = 0, asyncio.get_running_loop().time() + _GIVES_UP_S
        while True:
            try:
                async with closing(self._stream(after)) as events:
                    async for event in events:
                        after = event.seq
                        gives_up_at = asyncio.get_running_loop().time() + _GIVES_UP_S
                        if event.name == "state":
                            self._info = ChangeInfo.from_json(event.data)
                        yield event
            except _PASSING:
                if asyncio.get_running_loop().time() > gives_up_at:
                    raise
            else:
                return
            await asyncio.sleep(_RETRY_S)

    async def _stream(self, after: int) -> AsyncGenerator[ChangeEvent, None]:
        opened = self._connection.stream("GET", f"{self._path}/events", query={"after": after})
        async with opened as reply, closing(sse_events(raw_bytes(reply))) as events:
            async for event in events:
                if event.name == "error":
                    raise error_from_wire(event.data)
                if event.name == "done":
                    self._info = ChangeInfo.from_json(event.data)
                    return
                if event.name in ("state", "step", "output", "check"):
                    data = dict(event.data)
                    yield ChangeEvent(seq=data.pop("seq"), name=event.name, data=data)  # type: ignore[arg-type]
        raise DaemonUnreachable("the stream of events ended before the change did")

    async def _follow(
        self,
        states: frozenset[ChangeState] | builtins.set[ChangeState],
        progress: Progress | None = None,
    ) -> None:
        """Return when the change is in one of these states, or over."""
        async with closing(self.events()) as events:
            async for event in events:
                if progress is not None:
                    progress(event)
                if event.name == "state" and self.info.state in states:
                    return

    # ---- a block ----

    async def __aenter__(self) -> Self:
        if self._options is None or self._options.run is not None:
            raise InvalidRequest(
                "a change with run= makes itself", hint="call wait(), or leave run= out"
            )
        await self.start()
        try:
            await self._follow({ChangeState.CHANGING})
        except BaseException:
            await finish(self._abort("whoever made the change went away"), within_s=UNDO_LIMIT_S)
            raise
        if self.info.state is not ChangeState.CHANGING:
            await self.refresh()
            self.check()
            raise ChangeFailed(f"change {self.id} is {self.state} before it began: {self.why}")
        self._supervisor.launch(self._keep(self._options.lease_seconds), name=f"renew {self.id}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            await finish(self._abort(_words(error)), within_s=UNDO_LIMIT_S)
            return
        try:
            await self._finish()
        except BaseException:
            await finish(self._supervisor.aclose(), within_s=10)
            raise

    async def _finish(self) -> None:
        """Let the change be verified, and return when it is decided, or on probation."""
        await self._supervisor.aclose()
        with contextlib.suppress(WrongState):  # it is over already: what became of it is told below
            await self._again("done", {})
        await self._follow(_STOPS)
        await self.refresh()

    async def _abort(self, why: str) -> None:
        await self._supervisor.aclose()
        if self._info is None:
            return
        with contextlib.suppress(WrongState):
            await self._again("abort", {"why": why})
        await self._follow(ENDED)
        await self.refresh()

    async def _again(self, word: str, body: dict[str, Any]) -> None:
        """Say a word; a daemon that is being restarted is asked again."""
        gives_up_at = asyncio.get_running_loop().time() + _GIVES_UP_S
        while True:
            try:
                await self._connection.call("POST", f"{self._path}/{word}", body=body or None)
            except _PASSING:
                if asyncio.get_running_loop().time() > gives_up_at:
                    raise
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _keep(self, lease_seconds: float) -> None:
        """Renew the lease until the change is over."""
        while True:
            await asyncio.sleep(lease_seconds / _RENEWALS)
            try:
                await self._connection.call("POST", f"{self._path}/lease")
            except _PASSING:
                continue
            except TorporError:
                return  # it was decided by somebody else; the end of the block finds out

    # ---- inside ----

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    @property
    def _path(self) -> str:
        return f"/v1/changes/{quote_part(self.id)}"

    async def _rendered(self, form: str) -> str:
        query = {"format": form}
        opened = self._connection.stream("GET", f"{self._path}/report", query=query)
        async with opened as reply:
            return (await reply.aread()).decode("utf-8", "replace")


def _words(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}{f': {text}' if text else ''}"[:500].replace("\n", " ")
