"""The steps of a change: each a coroutine in the daemon's loop that may be done again, and returns plain JSON.

A step that an earlier daemon carried out and could not say so is begun again: it looks at what is so and does the
rest. The workflow that calls them, one after the other, is the only writer of its change's row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from torpor.base.clock import Clock
from torpor.base.faults import reach
from torpor.base.masking import masked, masked_json
from torpor.base.proc import host_boot
from torpor.db.changes import ChangeRow, ChangeRows
from torpor.errors import NotFound, TorporError, WrongState
from torpor.model import SandboxState
from torpor.model_changes import ChangeId, ChangeSpec, ChangeState, ChangeVerdict, Ending
from torpor.recovery.changes import table, undoing
from torpor.recovery.changes.command import CommandRun
from torpor.recovery.changes.feeds import Feeds
from torpor.recovery.changes.holdings import HoldingsFiles
from torpor.recovery.changes.looks import Look, Looker, Phase, look_json, opinion, told
from torpor.recovery.changes.proving import mark_kept, mark_put_back
from torpor.recovery.changes.quiet import described, point_json, take_point
from torpor.sandboxes.claims import Act, Claim
from torpor.sandboxes.port import EnginePort

S = ChangeState

LOOKS_KEPT = 20
_TEXT_MOST = 500
_LAST = frozenset({"keep", "fail", "rolled_back", "forget"})
"""Steps that end a change; done again, they find it ended."""
_UNCHANGED = frozenset({S.IDLE, S.QUIESCING, S.SNAPSHOTTED})
"""States in which nothing of the change can have been made."""


def no_change(change_id: str) -> NotFound:
    """Return the error for a change that is not there."""
    return NotFound(f"there is no change {change_id}", hint="list them: torpor changes")


class Gone(Exception):
    """Raised in a step when the sandbox was deleted: there is nothing left to change or put back."""


@dataclass(slots=True)
class Acts:
    """What the steps are made of."""

    engine: EnginePort
    rows: ChangeRows
    clock: Clock
    files: HoldingsFiles
    feeds: Feeds = field(default_factory=Feeds)
    rejections: dict[ChangeId, asyncio.Event] = field(default_factory=dict)
    leases: dict[ChangeId, float] = field(default_factory=dict)
    """When a block's client must have been heard of again, in the loop's time."""
    _offset_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._offset_s = self.clock.now().timestamp() - self.clock.monotonic_s()

    def steady(self) -> datetime:
        """Return the time of day as if nobody had set the clock since the daemon began: a jump ends no probation."""
        return datetime.fromtimestamp(self._offset_s + self.clock.monotonic_s(), UTC)

    async def call(self, name: str, change_id: ChangeId, *args: Any) -> dict[str, Any]:
        """Do a step; `{"gone": true}` when the sandbox was deleted."""
        row = await self.row(change_id)
        if not row.info.is_open and name not in _LAST:
            return {"gone": True}
        try:
            return await getattr(self, f"step_{name}")(row, *args)  # type: ignore[no-any-return]
        except Gone:
            return {"gone": True}
        except (NotFound, WrongState):
            if await self._is_gone(row):
                return {"gone": True}
            raise

    # ---- the row ----

    async def row(self, change_id: ChangeId) -> ChangeRow:
        """Return a change's row. Raises `NotFound`."""
        found = await asyncio.to_thread(self.rows.get, change_id)
        if found is None:
            raise no_change(change_id)
        return found

    async def save(self, row: ChangeRow) -> ChangeRow:
        """Write a row, and tell whoever looks on."""
        row = row.with_info(updated_at=self.clock.now(), why=masked(row.info.why))
        await asyncio.to_thread(self.rows.save, row)
        self.feeds.state(row.info)
        return row

    async def advance(self, row: ChangeRow, want: ChangeState, **changes: Any) -> ChangeRow:
        """Move to `want`, unless an earlier try came further already."""
        if row.info.state is not want and want not in table.MOVES[row.info.state]:
            return row
        row = await self.save(row.with_info(state=want, **changes))
        await self.claim(row)
        return row

    async def claim(self, row: ChangeRow) -> None:
        """Forbid others what would spoil the change; nothing once it is over."""
        info = row.info
        forbids: frozenset[Act] = frozenset({"rollback"})
        if info.state in table.BUSY:
            forbids |= {"pause", "hibernate"}
        claim = Claim(
            info.id,
            forbids,
            f"change {info.id} ({info.reason[:80]}) is {info.state}",
            f"wait for it, or undo it: torpor change rollback {info.id}",
        )
        await self.engine.claim(info.sandbox_id, claim if info.is_open else None, info.id)

    def step_told(self, change_id: ChangeId, message: str) -> None:
        """Tell whoever looks on what happens."""
        self.feeds.of(change_id).add("step", {"message": message})

    def rejection(self, change_id: ChangeId) -> asyncio.Event:
        """Return the event that is set when a change was rejected."""
        return self.rejections.setdefault(change_id, asyncio.Event())

    async def _is_gone(self, row: ChangeRow) -> bool:
        try:
            state = (await self.engine.get(row.info.sandbox_id)).state
        except NotFound:
            return True
        return state in (SandboxState.DELETED, SandboxState.DELETING)

    async def _noted(
        self, row: ChangeRow, name: str, began: datetime, outcome: str, **more: Any
    ) -> ChangeRow:
        """Add a step to the report."""
        now = self.clock.now()
        step = {
            "name": name,
            "started_at": began.isoformat(),
            "duration_ms": round((now - began) / timedelta(milliseconds=1)),
            "outcome": outcome[:_TEXT_MOST],
        }
        report = dict(row.report)
        steps = [s for s in report.get("steps", []) if s["name"] != name or name == "probation"]
        report["steps"] = [*steps, step]
        return replace(row, report=masked_json({**report, **more}))

    # ---- the steps, in their order ----

    async def step_quiesce(self, row: ChangeRow) -> dict[str, Any]:
        """Write down what is so before the change."""
        row = await self.advance(row, S.QUIESCING)
        reach("change.quiescing")
        began = self.clock.now()
        self.step_told(row.info.id, "looking at the machine as it is")
        try:
            await self.engine.check_room(row.info.sandbox_id)
            look = await self._look(row, "before")
        except TorporError as exc:
            if await self._is_gone(row):
                raise Gone from exc
            return {"ok": False, "why": f"it could not be begun: {exc.message}"}
        if not look.answers:
            return {"ok": False, "why": f"it could not be begun: {look.problem}"}
        row = await self._noted(row, "look before", began, "done", before=look_json(look))
        await self.save(row)
        return {"ok": True}

    async def step_snapshot(self, row: ChangeRow) -> dict[str, Any]:
        """Take the point to go back to, and protect it."""
        began = self.clock.now()
        self.step_told(row.info.id, "taking the snapshot to go back to")
        try:
            await self.files.hold(row.info.id)
            point = await take_point(self.engine, row)
            await self.engine.protect(
                point.id, row.info.id, f"change {row.info.id} may have to go back to it"
            )
        except TorporError as exc:
            if await self._is_gone(row):
                raise Gone from exc
            await self.save(await self._noted(row, "snapshot", began, exc.message))
            return {"ok": False, "why": f"no snapshot could be taken: {exc.message}"}
        row = await self._noted(row, "snapshot", began, described(point), point=point_json(point))
        reach("change.captured")
        await self.advance(row, S.SNAPSHOTTED, snapshot_id=point.id)
        reach("change.snapshotted")
        return {"ok": True, "snapshot_id": point.id}

    async def step_begin(self, row: ChangeRow) -> dict[str, Any]:
        """Let the change begin."""
        if "generation" not in row.notes:
            generation = (await self.engine.get(row.info.sandbox_id)).generation
            notes = {**row.notes, "generation": generation, "host_boot": host_boot()}
            row = replace(row, notes=notes)
        await self.advance(row, S.CHANGING)
        reach("change.changing")
        return {"ok": True, "kind": row.spec.kind}

    async def step_command(self, row: ChangeRow) -> dict[str, Any]:
        """Run the command, once; from its end on it is kept without what looks like a secret."""
        if (known := row.report.get("command")) is not None:  # an earlier try came to its end
            return {"outcome": known["outcome"], "why": known["why"]}
        began = self.clock.now()
        self.step_told(row.info.id, f"running: {row.info.command}")
        info = row.info
        run = CommandRun(
            self.engine,
            info.id,
            info.sandbox_id,
            row.spec,
            self.feeds.of(info.id),
            self.rejection(info.id),
        )

        async def note(here: Mapping[str, Any]) -> None:
            fresh = await self.row(info.id)
            await self.save(replace(fresh, notes={**fresh.notes, "started": dict(here)}))

        found = await run.run(row.notes.get("started"), note)
        row = await self.row(info.id)
        row = await self._noted(row, "change", began, found["why"], command=found)
        spec = replace(row.spec, command=row.spec.command and masked(row.spec.command))
        row = replace(row, spec=spec)
        reach("change.ended")
        await self.save(row)
        return {"outcome": found["outcome"], "why": found["why"]}

    async def step_lease(self, row: ChangeRow) -> dict[str, Any]:
        """Return how long the client of a block has, unless it is heard of again."""
        now = asyncio.get_running_loop().time()
        until = self.leases.setdefault(row.info.id, now + row.spec.lease_seconds)
        await self.engine.get(row.info.sandbox_id)
        if await self._is_gone(row):
            raise Gone
        return {"left": until - now}

    async def step_options(self, row: ChangeRow) -> dict[str, Any]:
        """Return what is to be done after the change was made."""
        return {"reboot": row.spec.reboot, "probation": row.spec.probation_seconds > 0}

    async def step_reboot(self, row: ChangeRow) -> dict[str, Any]:
        """Boot the machine from the disk that the change left."""
        row = await self.advance(row, S.VERIFYING)
        began = self.clock.now()
        self.step_told(row.info.id, "booting the machine from its disk")
        try:
            mode = await undoing.reboot(self.engine, row)
        except TorporError as exc:
            if await self._is_gone(row):
                raise Gone from exc
            await self.save(await self._noted(row, "reboot", began, exc.message))
            return {"ok": False, "why": f"it does not boot: {exc.message}"}
        await self.save(await self._noted(row, "reboot", began, f"booted ({mode})"))
        return {"ok": True}

    async def step_verify(self, row: ChangeRow, phase: Phase) -> dict[str, Any]:
        """Look at the machine and compare."""
        if phase == "after":
            row = await self.advance(row, S.VERIFYING)
            reach("change.verifying")
        began = self.clock.now()
        self.step_told(row.info.id, "looking at the machine again")
        held = await self.files.read(row.info.id, row.spec)
        look = await self._look(row, phase)
        before = row.report.get("before", {})
        found = await asyncio.to_thread(opinion, before, look, row.spec, held)
        said = ": ".join([found.verdict, *(found.reasons or found.evidence)[:1]])
        entry = {"at": began.isoformat(), **look_json(look), **found.to_json()}
        looks = _kept([*row.report.get("looks", []), entry])
        more: dict[str, Any] = {"looks": looks}
        if found.differs is not None:
            more["inventory"] = found.differs.to_json()
        name = "verify" if phase == "after" else "probation"
        row = await self._noted(row, name, began, said, **more)
        reach("change.verified")
        await self.save(row)
        return {
            "verdict": found.verdict,
            "ending": found.ending,
            "why": "; ".join(found.reasons or found.evidence)[:_TEXT_MOST],
        }

    async def step_probation(self, row: ChangeRow) -> dict[str, Any]:
        """Begin the probation, or find when it began."""
        spec = row.spec
        deadline = row.info.deadline_at
        if deadline is None:
            deadline = self.steady() + timedelta(seconds=spec.probation_seconds)
        row = await self.advance(
            row, S.PROBATION, deadline_at=deadline, require_confirm=spec.require_confirm
        )
        reach("change.probation")
        interval = spec.interval_seconds or min(300.0, max(10.0, spec.probation_seconds / 10))
        return {
            "deadline": deadline.timestamp(),
            "interval": interval,
            "confirm": spec.require_confirm,
        }

    async def step_clock(self, row: ChangeRow) -> dict[str, Any]:
        """Return the time of day, which no jump of the host's clock moves, and the deadline.

        The clock of a daemon before may have been ahead; nobody waits longer for that than a whole probation.
        """
        if await self._is_gone(row):
            raise Gone
        now, deadline = self.steady(), row.info.deadline_at
        if deadline is None:
            return {"now": now.timestamp()}
        latest = now + timedelta(seconds=row.spec.probation_seconds)
        if deadline > latest:
            deadline = latest
            await self.save(row.with_info(deadline_at=deadline))
        return {"now": now.timestamp(), "deadline": deadline.timestamp()}

    # ---- the ends ----

    async def step_keep(self, row: ChangeRow, verdict: ChangeVerdict, why: str) -> dict[str, Any]:
        """Keep the change."""
        if row.info.is_open and verdict == "kept":
            await mark_kept(self.engine, row)
        await self._close(row, S.KEPT, verdict=verdict, why=why)
        reach("change.kept")
        return {}

    async def step_fail(self, row: ChangeRow, why: str, ending: Ending) -> dict[str, Any]:
        """End a change that could not be begun, or not be undone."""
        await self._close(row, S.FAILED, why=why, ending=ending)
        return {}

    async def step_forget(self, row: ChangeRow) -> dict[str, Any]:
        """End a change whose sandbox was deleted."""
        why = "the sandbox was deleted meanwhile"
        if row.info.state in (S.VERIFYING, S.PROBATION):
            why += "; whether the change was right cannot be told any more"
        row = replace(row, notes={**row.notes, "gone": True})
        await self._close(row, S.FAILED, why=why)
        return {}

    async def step_doom(self, row: ChangeRow, why: str, ending: Ending) -> dict[str, Any]:
        """Begin to undo the change; `unchanged` when it had not begun."""
        if row.info.state in _UNCHANGED:
            return {"unchanged": True}
        if row.info.state is not S.ROLLING_BACK:
            if ending == "machine" and row.notes.get("host_boot", host_boot()) != host_boot():
                ending = (
                    "daemon"  # machines do not outlive their host, whatever was changed in them
                )
                why = (
                    f"{why}; its host was booted meanwhile, so that this says nothing of the change"
                )
            row = await self.advance(row, S.ROLLING_BACK, why=why, ending=ending, deadline_at=None)
        if "undone_from" not in row.notes:
            generation = (await self.engine.get(row.info.sandbox_id)).generation
            left = await undoing.volumes_left(self.engine, row)
            row = replace(row, report={**row.report, "volumes_left": left})
            row = await self.save(replace(row, notes={**row.notes, "undone_from": generation}))
        reach("change.undoing")
        self.step_told(row.info.id, f"undoing it: {why}")
        return {"unchanged": False}

    async def step_keep_failed(self, row: ChangeRow) -> dict[str, Any]:
        """Keep the machine as the change left it, if that can be had."""
        began = self.clock.now()
        point, note = await undoing.keep_failed(self.engine, row)
        row = await self._noted(row, "keep the failed state", began, note, failed_note=note)
        if point is not None:
            row = row.with_info(failed_snapshot_id=point.id)
        reach("change.saved")
        await self.save(row)
        return {"snapshot_id": None if point is None else point.id}

    async def step_put_back(self, row: ChangeRow) -> dict[str, Any]:
        """Put the machine back."""
        began = self.clock.now()
        self.step_told(row.info.id, "putting the machine back")
        try:
            note = await undoing.put_back(self.engine, row)
        except TorporError as exc:
            if await self._is_gone(row):
                raise Gone from exc
            await self.save(await self._noted(row, "put back", began, exc.message))
            return {"ok": False, "why": exc.message}
        reach("change.back")
        await self.save(await self._noted(row, "put back", began, note, back_note=note))
        return {"ok": True}

    async def step_look_back(self, row: ChangeRow) -> dict[str, Any]:
        """Look whether the machine that was put back is as it was."""
        began = self.clock.now()
        try:
            look = await self._look(row, "undone")
            found = opinion(row.report.get("before", {}), look, row.spec, None)
            said = ": ".join([found.verdict, *(found.reasons or found.evidence)[:1]])
            entry = {"at": began.isoformat(), **look_json(look), **found.to_json()}
        except TorporError as exc:
            if await self._is_gone(row):
                raise Gone from exc
            said, entry = told(exc), {"at": began.isoformat(), "problem": told(exc)}
        await self.save(await self._noted(row, "look after undoing", began, said, undone=entry))
        return {}

    async def step_rolled_back(self, row: ChangeRow) -> dict[str, Any]:
        """End a change that was undone."""
        if row.info.is_open:
            await mark_put_back(self.engine, row)
        await self._close(row, S.ROLLED_BACK, verdict="rolled_back")
        reach("change.undone")
        return {}

    async def _close(self, row: ChangeRow, state: ChangeState, **changes: Any) -> None:
        if not row.info.is_open:
            return
        row = replace(row, spec=_without_secrets(row.spec))
        row = row.with_info(state=state, ended_at=self.clock.now(), deadline_at=None, **changes)
        row = await self.save(row)
        reach("change.closed")
        await self.tidy(row)

    async def tidy(self, row: ChangeRow) -> None:
        """Let go of all that an ended change held. May be done again."""
        await self.claim(row)
        await self.engine.unprotect(None, row.info.id)
        await undoing.drop_helpers(self.engine, row)
        await self.files.remove(row.info.id)
        self.rejections.pop(row.info.id, None)
        self.leases.pop(row.info.id, None)

    async def _look(self, row: ChangeRow, phase: Phase) -> Look:
        feed = self.feeds.of(row.info.id)

        def progress(result: Any) -> None:
            feed.add(
                "check",
                {
                    "phase": phase,
                    "name": result.key,
                    "outcome": result.status,
                    "reason": masked(result.reason),
                },
            )

        held = None if phase == "before" else await self.files.read(row.info.id, row.spec)
        look = await Looker(self.engine, self.clock).look(
            row.info.sandbox_id, row.spec, phase, before=held, progress=progress
        )
        if phase == "before" and look.holdings is not None:
            await self.files.write(row.info.id, look.holdings)
        return look


def _without_secrets(spec: ChangeSpec) -> ChangeSpec:
    """Return what was asked for as it is kept when nobody has to carry it out any more."""
    return replace(
        spec,
        reason=masked(spec.reason),
        command=spec.command and masked(spec.command),
        checks=spec.checks and masked(spec.checks),
        profile=spec.profile and masked(spec.profile),
    )


def _kept(looks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the looks that the report keeps: the first, and the last ones."""
    return looks if len(looks) <= LOOKS_KEPT else [looks[0], *looks[-LOOKS_KEPT + 1 :]]
