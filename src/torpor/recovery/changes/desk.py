"""`ChangeDesk`: all that may be asked about changes. One a daemon.

It decides nothing about a change that runs: it writes the first row, starts the workflow, and hands it the words of
users. See `workflow` for how a change goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any

from torpor.base.aio import Supervisor, closing
from torpor.base.clock import Clock, SystemClock
from torpor.base.faults import reach
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.base.masking import masked
from torpor.db.changes import ChangeRow, ChangeRows
from torpor.errors import Conflict, InvalidRequest, WrongState
from torpor.model import SandboxId, SandboxInfo, SandboxState
from torpor.model_changes import ChangeEvent, ChangeId, ChangeInfo, ChangeSpec, ChangeState
from torpor.recovery.changes.acts import Acts
from torpor.recovery.changes.holdings import HoldingsFiles
from torpor.recovery.changes.looks import told
from torpor.recovery.changes.report import build
from torpor.recovery.changes.requests import check_change_id, check_spec, check_state
from torpor.recovery.durable import Durable
from torpor.sandboxes.port import EnginePort

log = logging.getLogger(__name__)

S = ChangeState
ANSWER_S = 20.0
"""How long a word waits for what became of it."""
_SWEEP_S = 30.0
_REMEMBERED = timedelta(hours=1)
"""How long a workflow that ended is kept; the change's row says all."""
_LINEAGE_MOST = 200
_LIST_MOST = 1000


class ChangeDesk:
    """Takes requests about changes."""

    def __init__(
        self, home: Home, engine: EnginePort, durable: Durable, *, clock: Clock | None = None
    ) -> None:
        self._engine = engine
        self._durable = durable
        self._clock = clock or SystemClock()
        self._rows = ChangeRows.attach(home.database)
        self._acts = Acts(engine, self._rows, self._clock, HoldingsFiles(home))
        self._supervisor = Supervisor(_failed)
        self._beginning: set[ChangeId] = set()
        self._is_swept = False
        durable.acts["changes"] = self._acts

    async def start(self) -> None:
        """Go on with what an earlier daemon left open; before anybody is served. Without any, nothing is loaded."""
        rows = await asyncio.to_thread(self._rows.open)
        for row in rows:
            await self._acts.claim(row)
        for change_id in await self._acts.files.held():
            await self._let_go(change_id)
        if rows:
            self._supervisor.launch(self._go_on(), name="changes that are open")

    async def aclose(self) -> None:
        """Stop; the workflows are closed by whoever made them (`Durable.aclose`)."""
        await self._supervisor.aclose()
        await asyncio.to_thread(self._rows.close)

    # ---- begin ----

    async def begin(self, sandbox_id: SandboxId, spec: ChangeSpec) -> ChangeInfo:
        """Begin a change and return it; what becomes of it, `events` and `get` tell.

        Raises:
            InvalidRequest: a value, the checks or the profile cannot be right.
            NotFound: no such sandbox.
            WrongState: it neither runs nor sleeps.
            Conflict: a change of it is open, or the target was rolled back before and `force` is off.
            LimitExceeded, InsufficientResources: there is no room for the snapshot; nothing was begun.
        """
        await asyncio.to_thread(check_spec, spec)
        info = await self._engine.get(sandbox_id)
        check_state(info)
        await self._check_target(info, spec)
        await self._engine.check_room(sandbox_id)
        now = self._clock.now()
        row = ChangeRow(
            ChangeInfo(
                id=ChangeId(new_id("chg")),
                sandbox_id=sandbox_id,
                state=S.IDLE,
                reason=masked(spec.reason),
                author=spec.author,
                target=spec.target,
                kind=spec.kind,
                command=spec.command and masked(spec.command),
                memory=spec.memory,
                created_at=now,
                updated_at=now,
                require_confirm=spec.require_confirm and spec.probation_seconds > 0,
            ),
            spec,
        )
        await asyncio.to_thread(self._rows.insert, row)
        reach("change.idle")
        # a caller that goes away undoes nothing
        error = await asyncio.shield(
            self._supervisor.spawn(self._start(row), name=f"begin {row.info.id}")
        )
        if error is not None:
            raise error
        return row.info

    async def _start(self, row: ChangeRow) -> Exception | None:
        """Start a change's workflow, or end the change; return what was in the way."""
        self._beginning.add(row.info.id)
        try:
            await self._acts.claim(row)
            self._acts.feeds.state(row.info)
            await self._durable.launch()
            from torpor.recovery.changes.workflow import change

            await self._durable.start(change, row.info.id)
        except Exception as exc:  # noqa: BLE001 - handed to the caller, who raises it
            await self._acts.step_fail(row, f"it could not be begun: {told(exc)}", "daemon")
            return exc
        finally:
            self._beginning.discard(row.info.id)
        self._look_after_all()
        return None

    async def _check_target(self, info: SandboxInfo, spec: ChangeSpec) -> None:
        if spec.target is None or spec.force:
            return
        family = await self._lineage(info)
        found = await asyncio.to_thread(self._rows.bad_target, family, spec.target)
        if found is not None:
            raise Conflict(
                f"{spec.target!r} was rolled back before, on {found.created_at:%Y-%m-%d}: {found.why}",
                hint=f"see torpor report {found.id}; to try it all the same, force it (--force)",
                change_id=found.id,
                target=spec.target,
            )

    async def _lineage(self, info: SandboxInfo) -> list[SandboxId]:
        """Return a sandbox and those that it descends from."""
        known = {s.id: s for s in await self._engine.snapshots()}
        family = {info.id}
        at = info.parent_snapshot
        for _ in range(_LINEAGE_MOST):
            if at is None or at not in known:
                break
            snapshot = known[at]
            if snapshot.sandbox_id is not None:
                family.add(snapshot.sandbox_id)
            at = snapshot.parent
        return sorted(family)

    # ---- look ----

    async def get(self, change_id: str) -> ChangeInfo:
        """Return a change. Raises `NotFound`."""
        return (await self._acts.row(check_change_id(change_id))).info

    async def list(
        self, sandbox_id: SandboxId | None = None, *, limit: int = 100, skip: int = 0
    ) -> list[ChangeInfo]:
        """Return changes, newest first, behind the first `skip`; of one sandbox, or all."""
        if not 1 <= limit <= _LIST_MOST:
            raise InvalidRequest(f"limit is {limit}; 1 to {_LIST_MOST} is wanted")
        return await asyncio.to_thread(self._rows.infos, sandbox_id, limit, skip=skip)

    async def open_of(self, sandbox_id: SandboxId) -> ChangeInfo | None:
        """Return the change of a sandbox that is open; None: there is none."""
        row = await asyncio.to_thread(self._rows.open_of, sandbox_id)
        return None if row is None else row.info

    async def report(self, change_id: str) -> Mapping[str, Any]:
        """Return the evidence of a change, so far or for good. Raises `NotFound`."""
        row = await self._acts.row(check_change_id(change_id))
        return build(row, self._clock.now())

    async def events(self, change_id: str, after: int = 0) -> AsyncGenerator[ChangeEvent, None]:
        """Yield what happened to a change, as far as it is remembered, and what happens, until it is over.

        Args:
            change_id: which change.
            after: the number of the last event that is known already; one of another daemon is none.
        """
        row = await self._acts.row(check_change_id(change_id))
        feed = self._acts.feeds.of(row.info.id)
        if feed.last < max(after, 1):
            after = 0
            if not feed.last or not row.info.is_open:
                self._acts.feeds.state(row.info)
        async with closing(feed.follow(after)) as events:
            async for event in events:
                yield event

    # ---- words ----

    async def confirm(self, change_id: str, *, by: str = "") -> ChangeInfo:
        """Keep a change that is on probation, now.

        While the machine is being looked at, that decides first; a look that takes long is not waited for: the change
        is then returned as one that is on probation still, and is kept as soon as the look speaks for it.

        Raises:
            WrongState: it is not on probation.
            Conflict: it came too late.
        """
        row = await self._acts.row(check_change_id(change_id))
        if row.info.state is not S.PROBATION:
            raise WrongState(
                f"change {row.info.id} is {row.info.state}; only one on probation can be confirmed",
                hint=_hint_instead(row),
                state=row.info.state,
            )
        await self._send(row, {"say": "confirm", "by": by or "a user"})
        info = await self._settled(row, lambda found: not found.is_open)
        if info.state not in (S.KEPT, S.PROBATION):
            raise Conflict(f"change {info.id} is {info.state}: {info.why}", change_id=info.id)
        return info

    async def reject(
        self, change_id: str, *, why: str = "", by: str = "", ending: str = "rejected"
    ) -> ChangeInfo:
        """Undo a change that is open, whatever it does now; returns as soon as that has begun.

        Raises:
            WrongState: it is over.
            Conflict: it came too late: the change was kept.
        """
        row = await self._acts.row(check_change_id(change_id))
        if not row.info.is_open:
            raise WrongState(
                f"change {row.info.id} is over: it is {row.info.state}",
                hint=_way_back(row.info),
                state=row.info.state,
            )
        words = f"rejected by {by or 'a user'}" + (f": {why}" if why else "")
        said = words if ending == "rejected" else why
        self._acts.rejection(row.info.id).set()
        await self._send(row, {"say": "reject", "why": said, "ending": ending})
        info = await self._settled(row, lambda found: found.state is not row.info.state)
        if info.state is S.KEPT:
            raise Conflict(
                f"it came too late: change {info.id} is kept: {info.why}",
                hint=_way_back(info),
                change_id=info.id,
            )
        return info

    async def done(self, change_id: str) -> ChangeInfo:
        """Say that the client of a block has made its change, so that it is verified.

        Raises:
            WrongState: it is no block, or does not wait for that.
        """
        row = await self._block(change_id)
        await self._send(row, {"say": "done"})
        return await self._settled(row, lambda found: found.state is not S.CHANGING)

    async def renew(self, change_id: str) -> ChangeInfo:
        """Say that the client of a block still works. Raises `WrongState`."""
        row = await self._block(change_id)
        until = asyncio.get_running_loop().time() + row.spec.lease_seconds
        self._acts.leases[row.info.id] = until
        return row.info

    async def _block(self, change_id: str) -> ChangeRow:
        row = await self._acts.row(check_change_id(change_id))
        if row.spec.kind != "block" or row.info.state is not S.CHANGING:
            raise WrongState(
                f"change {row.info.id} is {row.info.state}: {row.info.why or 'it waits for no client'}",
                hint=_hint_instead(row),
                state=row.info.state,
            )
        return row

    async def _send(self, row: ChangeRow, word: Mapping[str, Any]) -> None:
        from torpor.recovery.changes.workflow import WORDS

        if not await self._durable.is_alive(row.info.id):
            await self._unheard(row, word)
            return
        await self._durable.send(row.info.id, dict(word), WORDS)

    async def _unheard(self, row: ChangeRow, word: Mapping[str, Any]) -> None:
        """See to a change that nobody carries out; it is undone, so that only a rejection is no error."""
        row = await self._acts.row(row.info.id)
        if not row.info.is_open:
            return
        if row.info.id in self._beginning:
            raise Conflict(
                f"change {row.info.id} is being begun", hint="try again", change_id=row.info.id
            )
        await self._look_after(row)
        if word["say"] != "reject":
            raise Conflict(
                f"change {row.info.id} is being undone: the daemon lost track of it",
                hint=f"see torpor report {row.info.id}",
                change_id=row.info.id,
            )

    async def _settled(self, row: ChangeRow, is_so: Any) -> ChangeInfo:
        """Return the change when something is so, or as it is after a while."""
        feed = self._acts.feeds.of(row.info.id)
        seen = feed.last
        info = await self.get(row.info.id)
        if is_so(info):
            return info
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S), closing(feed.follow(seen)) as events:
                async for event in events:
                    if event.name == "state" and is_so(ChangeInfo.from_json(event.data)):
                        break
        return await self.get(row.info.id)

    # ---- what was left ----

    async def _go_on(self) -> None:
        await self._durable.go_on()
        self._look_after_all()

    def _look_after_all(self) -> None:
        """See to open changes from now on; nothing happens the second time."""
        if not self._is_swept:
            self._is_swept = True
            self._supervisor.launch(self._sweep(), name="sweep of changes")
            self._supervisor.launch(self._follow_deletes(), name="deleted sandboxes of changes")

    async def _follow_deletes(self) -> None:
        """Let a change look around at once when its sandbox is deleted: it is over."""
        async with closing(self._engine.events()) as events:
            async for event in events:
                if event.kind == "gap":
                    for row in await asyncio.to_thread(self._rows.open):
                        self._durable.nudge(row.info.id)
                elif (event.kind, event.state) == ("sandbox", SandboxState.DELETED):
                    info = await self.open_of(SandboxId(event.object_id))
                    if info is not None:
                        self._durable.nudge(info.id)

    async def _let_go(self, change_id: ChangeId) -> None:
        """Finish what a daemon that died in the end of a change did not: nothing is held for one that is over."""
        row = await asyncio.to_thread(self._rows.get, change_id)
        if row is not None and row.info.is_open:
            return
        try:
            if row is None:
                await self._acts.files.remove(change_id)
            else:
                await self._acts.tidy(row)
        except Exception as exc:  # noqa: BLE001 - the next daemon tries again; this one has others to serve
            _failed(f"change {change_id}", exc)

    async def _sweep(self) -> None:
        """See to it that every open change has a workflow; one that has none is undone."""
        while True:
            try:
                await self._swept()
            except Exception as exc:  # noqa: BLE001 - such as a full disk: the next turn may do better
                _failed("sweep of changes", exc)
            await asyncio.sleep(_SWEEP_S)

    async def _swept(self) -> None:
        for row in await asyncio.to_thread(self._rows.open):
            try:
                await self._look_after(row)
            except Exception as exc:  # noqa: BLE001 - whatever it is, the others are looked after
                _failed(f"change {row.info.id}", exc)
        await self._durable.prune(self._clock.now() - _REMEMBERED)

    async def _look_after(self, row: ChangeRow) -> None:
        change_id = row.info.id
        if change_id in self._beginning or await self._durable.is_alive(change_id):
            return
        tries = [f"{change_id}.{n}" for n in range(1, 100)]
        for workflow_id in tries:
            if await self._durable.is_alive(workflow_id):
                return
            if not await self._durable.is_known(workflow_id):
                from torpor.recovery.changes.workflow import abandon

                log.warning("change %s has no workflow; it is undone", change_id)
                await self._durable.start(abandon, workflow_id)
                return


def _way_back(info: ChangeInfo) -> str | None:
    """Return how a change that was kept is undone all the same."""
    if info.state is not S.KEPT:
        return None
    return f"to go back to before it: torpor rollback {info.sandbox_id} {info.snapshot_id} --cold"


def _hint_instead(row: ChangeRow) -> str:
    """Return what to do about a change that cannot be confirmed as it is now."""
    change_id = row.info.id
    if not row.info.is_open:
        return f"it is over: torpor report {change_id}"
    if row.info.state is S.ROLLING_BACK:
        return f"it is being put back: torpor change follow {change_id}"
    if not row.spec.probation_seconds:
        return f"it has no probation, its checks decide: torpor change follow {change_id}"
    return f"it is on its way there: torpor change follow {change_id}, and confirm it from probation on"


def _failed(name: str, error: BaseException) -> None:
    log.error("%s: %s", name, error, exc_info=error)
