"""The steps of a drill: each a coroutine in the daemon's loop that may be done again, and returns plain JSON.

A clone's id is written down before the clone is made, so that whoever comes next can remove it. A way of coming back
that was interrupted is begun anew with another clone, which the evidence tells.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torpor.base.aio import finish
from torpor.base.clock import Clock
from torpor.base.faults import reach
from torpor.base.ids import new_id
from torpor.base.masking import masked, masked_json
from torpor.db.drills import DrillRow, DrillRows
from torpor.errors import (
    DataDamaged,
    GuestUnreachable,
    NotFound,
    TorporError,
    VmmFailed,
)
from torpor.model import (
    DRILL_MARK,
    MemoryChoice,
    RestoreSpec,
    SandboxId,
    SandboxInfo,
    SandboxState,
    SnapshotInfo,
)
from torpor.model_drills import POINTS, DrillId, Point, PointOutcome
from torpor.model_inventory import Inventory
from torpor.recovery.drills.evidence import EvidenceFiles, build, judge
from torpor.recovery.drills.look import DrillLooker, Findings
from torpor.recovery.drills.still import held_of
from torpor.sandboxes.claims import Claim
from torpor.sandboxes.port import EnginePort

if TYPE_CHECKING:
    from torpor.recovery.profiles.model import AgentProfile

TRIES = 3
"""How often a way of coming back is begun that something interrupts."""
_DELETE_S = 120.0
_LEASE_SPARE_S = 600


def no_drill(drill_id: DrillId) -> NotFound:
    """Return the error for a drill that is not there."""
    return NotFound(f"there is no drill {drill_id}", hint="list them: torpor drill ls")


@dataclass(slots=True)
class DrillActs:
    """What the steps are made of."""

    engine: EnginePort
    rows: DrillRows
    clock: Clock
    files: EvidenceFiles
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A clone takes memory that the host's own sandboxes may need."""
    changed: dict[DrillId, asyncio.Event] = field(default_factory=dict)
    steps: dict[DrillId, str] = field(default_factory=dict)
    """What is done in clones now, for whoever looks on."""

    async def call(self, name: str, drill_id: DrillId, *args: Any) -> dict[str, Any]:
        """Do a step; nothing when the drill is over."""
        row = await self.row(drill_id)
        if not row.info.is_open:
            return {}
        found: dict[str, Any] = await getattr(self, f"step_{name}")(row, *args)
        return found

    async def row(self, drill_id: DrillId) -> DrillRow:
        """Return a drill's row. Raises `NotFound`."""
        found = await asyncio.to_thread(self.rows.get, drill_id)
        if found is None:
            raise no_drill(drill_id)
        return found

    async def save(self, row: DrillRow) -> DrillRow:
        """Write a row, and tell whoever waits."""
        row = row.with_info(updated_at=self.clock.now())
        await asyncio.to_thread(self.rows.save, row)
        self.tell(row.info.id)
        return row

    def tell(self, drill_id: DrillId) -> None:
        """Wake whoever waits for news of a drill."""
        event = self.changed.pop(drill_id, None)
        if event is not None:
            event.set()

    def news(self, drill_id: DrillId) -> asyncio.Event:
        """Return what is set when there are news of a drill."""
        return self.changed.setdefault(drill_id, asyncio.Event())

    # ---- the steps, in their order ----

    async def step_files(self, row: DrillRow) -> dict[str, Any]:
        """Read all that the snapshot needs, and compare it with what was written."""
        row = await self.save(row.with_info(step="reading the snapshot's files"))
        reach("drill.files")
        notes: dict[str, Any] = {}
        try:
            info = await self.engine.get_snapshot(row.info.snapshot_id)
            notes["snapshot"] = _snapshot(info)
            notes["data_age_seconds"] = round((self.clock.now() - info.created_at).total_seconds())
            damages = await self.engine.verify_snapshot(info.id)
            notes["damaged"] = [f"{damage.layer}: {damage.problem}"[:300] for damage in damages]
        except TorporError as exc:
            notes["unread"] = f"its files could not be read: {exc.message}"[:500]
        await self.save(replace(row, notes={**row.notes, **notes}))
        return {"go_on": not notes.get("unread") and not notes.get("damaged")}

    async def step_boot(self, row: DrillRow, memory: MemoryChoice) -> dict[str, Any]:
        """Bring the snapshot back in one way, look at it, and throw the clone away."""
        if any(boot["memory"] == memory for boot in row.notes.get("boots", [])):
            return {}
        row = await self.save(row.with_info(step="waiting for another drill"))
        async with self.one_at_a_time:
            row = await self._without_clones(row)
            tries = dict(row.notes.get("tries", {}))
            began, tries[memory] = tries.get(memory, 0), tries.get(memory, 0) + 1
            interrupted = list(row.notes.get("interrupted", []))
            if began:
                interrupted.append(
                    f"{memory}: the daemon ended in the middle of it; it was begun anew"
                )
            row = replace(row, notes={**row.notes, "tries": tries, "interrupted": interrupted})
            if began >= TRIES:
                why = f"it was interrupted {began} times"
                boot = _not_looked_at(memory, "inconclusive", why)
            else:
                row, boot = await self._boot(row, memory)
                # which may be this host's fault, such as one that is out of memory
                if boot.pop("died"):
                    why = f"{memory}: {boot['points'][0]['why']}; it was begun anew"
                    interrupted = [*row.notes.get("interrupted", []), why]
                    row = replace(row, notes={**row.notes, "interrupted": interrupted})
                    row, boot = await self._boot(row, memory)
                    del boot["died"]
            boots = [*row.notes.get("boots", []), boot]
            await self.save(replace(row, notes={**row.notes, "boots": boots}))
        return {}

    async def step_note_failure(self, row: DrillRow, why: str) -> dict[str, Any]:
        """Note why it could not be carried on."""
        said = f"it could not be carried on: {why}"[:500]
        await self.save(replace(row, notes={**row.notes, "given_up": said}))
        return {}

    async def step_end(self, row: DrillRow) -> dict[str, Any]:
        """Judge, keep the evidence, say what is known of the snapshot now, and be over."""
        row = await self._without_clones(row)
        left = row.notes.get("clones", [])
        judged, now = judge(row), self.clock.now()
        await self.files.write(row.info.id, build(row, judged, now, left))
        reach("drill.evidence")
        snapshot_id = row.info.snapshot_id
        with contextlib.suppress(TorporError):  # a snapshot that is gone needs no mark
            if judged.verdict == "pass":
                why = f"drill {row.info.id} brought it back on {now:%Y-%m-%d}, and all was there"
                await self.engine.mark_good(snapshot_id, row.info.id, why)
            elif judged.verdict == "fail" and not _is_only_late(row):
                await self.engine.unmark_good(snapshot_id)
        await self.engine.unprotect(None, row.info.id)
        await self.save(
            _without_secrets(row).with_info(
                verdict=judged.verdict, sentence=judged.sentence, ended_at=now, step="over"
            )
        )
        reach("drill.over")
        return {}

    async def give_up(self, row: DrillRow, why: str) -> None:
        """End a drill that nobody carries out any more."""
        row = await self.row(row.info.id)
        if row.info.is_open:
            row = await self.save(replace(row, notes={**row.notes, "given_up": why}))
            await self.step_end(row)

    # ---- one way of coming back ----

    async def _boot(self, row: DrillRow, memory: MemoryChoice) -> tuple[DrillRow, dict[str, Any]]:
        clone, drill_id = SandboxId(new_id("sbx")), row.info.id
        began, began_s = self.clock.now(), self.clock.monotonic_s()
        before = await self._inventory(row)
        profile = await asyncio.to_thread(_profile, row, before)
        held = held_of(profile, before)
        notes = {**row.notes, "clones": [*row.notes.get("clones", []), clone]}
        how = "with its memory" if memory == "ram" else "from its disk alone"
        row = replace(row, notes=notes | {"held": [*held.still.units, "*.timer"]})
        row = await self.save(row.with_info(step=f"bringing it back {how}"))
        reach("drill.intent")
        machine_ms, info, found, died, late = 0, None, None, False, False
        outcome: PointOutcome = "pass"
        why = ""
        try:
            async with asyncio.timeout(row.spec.limit_seconds):
                info = await self._restored(row, clone, memory, held_still=held.still)
                machine_ms = self._ms_since(began_s)
                reach("drill.booted")
                found = await self._look(row, clone, memory, profile, before)
                reach("drill.looked")
        except TimeoutError:
            late = True
            outcome, why = "fail", f"it was not done within {row.spec.limit_seconds:g} s"
        except TorporError as exc:
            outcome, why = _blame(exc), exc.message
            died = isinstance(exc, (GuestUnreachable, VmmFailed))
        finally:
            whole_ms = self._ms_since(began_s)
            await finish(self._throw_away(clone, drill_id), within_s=None)
        row = await self._without_clones(await self.row(drill_id))
        if found is not None and found.profile_text is not None:
            row = replace(row, notes={**row.notes, "profile_text": found.profile_text})
        if found is None or info is None:
            boot = _not_looked_at(memory, outcome, why)
        else:
            mode = "booted from its disk" if info.boot_mode == "cold" else "went on where it stood"
            seconds = machine_ms / 1000
            first = Point(
                name="boots",
                outcome="pass",
                why=f"it {mode}, and answered after {seconds:.1f} s",
            )
            boot = {
                "memory": memory,
                "boot_mode": info.boot_mode,
                "network": info.network,
                "points": [point.to_json() for point in (first, *found.points)],
                "checks": None if found.checks is None else found.checks.to_json(),
                "profile": found.profile,
                "let_go_for_checks": list(found.let_go),
                "notes": list(found.notes),
            }
        boot |= {
            "died": died,
            "late": late,
            "clone": clone,
            "started_at": began.isoformat(),
            "recovery_ms": {"machine": machine_ms, "checked": whole_ms},
        }
        return row, boot

    async def _restored(
        self, row: DrillRow, clone: SandboxId, memory: MemoryChoice, *, held_still: Any
    ) -> SandboxInfo:
        snapshot = await self.engine.get_snapshot(row.info.snapshot_id)
        spec = RestoreSpec(
            network="none",
            metadata={DRILL_MARK: row.info.id},
            ttl_seconds=int(row.spec.limit_seconds) + _LEASE_SPARE_S,
            sandbox_id=clone,
            workspace=row.info.workspace,
            # clones of what is part of it; never what the living sandbox works with
            volumes="include" if snapshot.volumes_mode == "include" else "detach",
            memory=memory,
            still=held_still,
        )
        info = await self.engine.restore(snapshot.id, spec)
        why = f"it is the clone of drill {row.info.id}"
        claim = Claim(
            row.info.id,
            frozenset({"pause", "hibernate", "rollback"}),
            why,
            "it goes by itself; restore the snapshot to have one of your own",
        )
        await self.engine.claim(clone, claim, row.info.id)
        if info.network != "none":
            raise VmmFailed(f"the clone has the network {info.network!r}; none is wanted")
        return info

    async def _look(
        self,
        row: DrillRow,
        clone: SandboxId,
        memory: MemoryChoice,
        profile: AgentProfile | None,
        before: Inventory | None,
    ) -> Findings:
        drill_id = row.info.id

        def progress(words: str) -> None:
            """Say what is done now; in memory alone, for whoever looks on."""
            self.steps[drill_id] = words
            self.tell(drill_id)

        try:
            return await DrillLooker(self.engine, self.clock).look(
                clone, row.spec, memory, profile=profile, before=before, progress=progress
            )
        finally:
            self.steps.pop(drill_id, None)

    async def _inventory(self, row: DrillRow) -> Inventory | None:
        try:
            return await self.engine.snapshot_inventory(row.info.snapshot_id)
        except (NotFound, DataDamaged):
            return None

    async def _without_clones(self, row: DrillRow) -> DrillRow:
        """Delete the clones that a row names, and return it without those that are gone."""
        clones = [SandboxId(clone) for clone in row.notes.get("clones", [])]
        left = [clone for clone in clones if not await self._delete(clone, row.info.id)]
        if left == clones:
            return row
        return await self.save(replace(row, notes={**row.notes, "clones": left}))

    async def _delete(self, clone: SandboxId, drill_id: DrillId) -> bool:
        """Delete a clone; return whether it is gone."""
        await self.engine.claim(clone, None, drill_id)
        try:
            return (await self.engine.delete(clone)).state is SandboxState.DELETED
        except NotFound:
            return True
        except TorporError:
            return False

    async def _throw_away(self, clone: SandboxId, drill_id: DrillId) -> None:
        """Delete a clone; one that does not go is tried again at the drill's end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DELETE_S):
                await self._delete(clone, drill_id)

    def _ms_since(self, began_s: float) -> int:
        return round((self.clock.monotonic_s() - began_s) * 1000)


def _without_secrets(row: DrillRow) -> DrillRow:
    """Return a row as it is kept when nobody has to carry it out any more."""
    spec = replace(
        row.spec,
        checks=row.spec.checks and masked(row.spec.checks),
        profile=row.spec.profile and masked(row.spec.profile),
    )
    return replace(row, spec=spec, notes=masked_json(row.notes))


def _profile(row: DrillRow, before: Inventory | None) -> AgentProfile | None:
    """Return the agent's profile as far as it is known before the clone is; None: it has to be looked for."""
    from torpor.recovery.profiles import parse_profile, shipped, shipped_names

    text = row.spec.profile or row.notes.get("profile_text")
    if text is not None:
        is_text = "\n" in text or ":" in text
        return parse_profile(text, source="profile") if is_text else shipped(text)
    if before is not None and before.profile in shipped_names():
        found = shipped(before.profile)
        if found.digest == before.profile_digest:
            return found
    return None


def _blame(error: TorporError) -> PointOutcome:
    """Say whether a machine that does not come back speaks against its snapshot."""
    # all others mean that it could not be tried here: no room, another CPU, an agent too old to hold things still
    return (
        "fail" if isinstance(error, (DataDamaged, GuestUnreachable, VmmFailed)) else "inconclusive"
    )


def _is_only_late(row: DrillRow) -> bool:
    """Return whether a drill failed by its time alone: this host may have been busy, and the snapshot is what it was."""
    failed = [
        boot
        for boot in row.notes.get("boots", [])
        if any(point["outcome"] == "fail" for point in boot["points"])
    ]
    return not row.notes.get("damaged") and all(boot.get("late") for boot in failed)


def _not_looked_at(memory: MemoryChoice, outcome: PointOutcome, why: str) -> dict[str, Any]:
    others = [name for name in POINTS if name != "boots"]
    points = [
        Point(name="boots", outcome=outcome, why=why[:1000]),
        *(Point(name=n, outcome="nothing", why="it did not come to that") for n in others),
    ]
    return {
        "memory": memory,
        "boot_mode": None,
        "network": "none",
        "points": [point.to_json() for point in points],
        "checks": None,
        "profile": None,
        "let_go_for_checks": [],
        "notes": [],
    }


def _snapshot(info: SnapshotInfo) -> Mapping[str, Any]:
    return {
        "id": info.id,
        "label": info.label,
        "created_at": info.created_at.isoformat(),
        "consistency": info.consistency,
        "template": info.template,
        "driver": info.driver,
        "driver_version": info.driver_version,
    }
