"""A look into a drill's clone: what it holds first, while all is held; then the agent is let go, and checked."""

from __future__ import annotations

import asyncio
import fnmatch
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torpor.base.clock import Clock
from torpor.errors import GuestFailed, GuestUnreachable, HostNotReady, OperationTimeout
from torpor.guest.port import Guest
from torpor.model import MemoryChoice, SandboxId
from torpor.model_checks import CheckReport
from torpor.model_drills import DrillSpec, Point, PointName
from torpor.model_inventory import Inventory
from torpor.recovery.drills.points import (
    Found,
    add_checks,
    add_holdings,
    add_processes,
    add_units,
    missing_units,
    running,
)
from torpor.recovery.drills.still import held_of
from torpor.sandboxes.port import EnginePort

if TYPE_CHECKING:
    from torpor.recovery.checks import GuestProbe
    from torpor.recovery.checks.baseline import Baseline
    from torpor.recovery.profiles.model import AgentProfile

_START_UP_S = 240.0
"""How long a machine may take to have started all that it starts."""
_GRACE_S = 20.0
"""How long what should run may take to do so, once its machine has started."""
_RETRY_S = 2.0
_COMMAND_S = 60.0
_TASK = (
    "set -e; f=$(mktemp /var/tmp/torpor-drill.XXXXXX); trap 'rm -f \"$f\"' EXIT; "
    'echo "a small task" >"$f"; sync "$f"; test "$(cat "$f")" = "a small task"'
)
_LET_GO = (
    "find /sys/fs/cgroup -type d -name {unit} -exec sh -c 'echo 0 >\"$1/cgroup.freeze\"' sh {{}} ';'; "
    "for u in $(systemctl list-unit-files --no-legend --plain {unit} 2>/dev/null | cut -d' ' -f1); do "
    'systemctl is-active --quiet "$u" && continue; '
    "for d in /etc/systemd/system /usr/local/lib/systemd/system /usr/lib/systemd/system /lib/systemd/system; do "
    'if [ -f "$d/$u" ]; then mkdir -p /run/systemd/system.control; '
    'cp "$d/$u" /run/systemd/system.control/; systemctl daemon-reload; '
    'systemctl --no-block start "$u"; break; fi; done; done'
)
"""Thaws an agent's service; one that was kept from starting is started under a unit that comes before the mask."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one look found."""

    points: tuple[Point, ...]
    """All but `boots`."""
    checks: CheckReport | None = None
    profile: str | None = None
    profile_text: str | None = None
    """The machine's own profile, if it has one."""
    let_go: tuple[str, ...] = ()
    """The agent's services that ran for the checks, after all else was looked at."""
    notes: tuple[str, ...] = field(default=())


class DrillLooker:
    """Looks into clones."""

    def __init__(self, engine: EnginePort, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def look(
        self,
        sandbox_id: SandboxId,
        spec: DrillSpec,
        memory: MemoryChoice,
        *,
        profile: AgentProfile | None,
        before: Inventory | None,
        progress: Progress,
    ) -> Findings:
        """Look once.

        Args:
            sandbox_id: the clone.
            spec: what is asked for.
            memory: how it came back.
            profile: the agent's, if it is known; else it is looked for in the clone.
            before: what the machine held when the snapshot was taken.
            progress: told what is done.

        Raises:
            GuestUnreachable, VmmFailed: it does not answer any more.
        """
        async with self._engine.guest(sandbox_id) as guest:
            return await _Look(guest, spec, memory, before, self._clock, progress).all(profile)


class _Look:
    """One look into one clone."""

    def __init__(
        self,
        guest: Guest,
        spec: DrillSpec,
        memory: MemoryChoice,
        before: Inventory | None,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._guest = guest
        self._spec = spec
        self._is_cold = memory == "cold"
        self._before = before
        self._clock = clock
        self._progress = progress
        self._found = Found()
        self._notes: list[str] = []
        self._held = held_of(None, before)

    async def all(self, profile: AgentProfile | None) -> Findings:
        from torpor.recovery.checks import GuestProbe

        probe, text = GuestProbe(self._guest), None
        if profile is None:
            profile, text = await self._own_profile()
        self._held = held_of(profile, self._before)
        if text is not None:  # what it names could not be held before it was read
            await self._guest.hold_still(self._held.still)
        if self._is_cold:
            self._progress("waiting until it has started")
            await self._started(probe)
        self._progress("looking at what it holds")
        await self._holdings(profile)
        await self._task(probe)
        let_go = await self._let_go(probe, profile)
        await self._settled(profile)
        report = await self._checks(probe, profile)
        return Findings(
            points=tuple(self._found.point(name) for name in _LOOKED_AT),
            checks=report,
            profile=profile.name,
            profile_text=text,
            let_go=let_go,
            notes=tuple(self._notes),
        )

    async def _own_profile(self) -> tuple[AgentProfile, str | None]:
        from torpor.recovery.inventory import detect

        found = await detect(self._guest)
        if found.problem is not None:
            self._notes.append(f"the machine's own profile is not used: {found.problem}"[:500])
        return found.profile, found.own_text

    async def _started(self, probe: GuestProbe) -> None:
        command = "command -v systemctl >/dev/null || exit 0; systemctl is-system-running --wait"
        ran = await probe.run(command, timeout_seconds=_START_UP_S)
        if ran.timed_out:
            self._notes.append(f"it had not started all within {_START_UP_S:g} s")

    async def _taken(self, profile: AgentProfile) -> Inventory | None:
        from torpor.recovery.inventory import take

        try:
            return await take(self._guest, profile, now=self._clock.now())
        except GuestUnreachable:
            raise
        except (GuestFailed, HostNotReady, OperationTimeout) as exc:
            self._notes.append(f"what it holds could not be listed: {exc.message}"[:500])
            return None

    async def _holdings(self, profile: AgentProfile) -> None:
        if self._before is None:
            self._notes.append("the snapshot has no inventory: what it holds compares with nothing")
            return
        now = await self._taken(profile)
        if now is None:
            for name in ("files", "schedule"):
                said = "what it holds could not be listed"
                self._found.add(name, "inconclusive", said)
        else:
            await asyncio.to_thread(add_holdings, self._found, self._before, now)

    async def _task(self, probe: GuestProbe) -> None:
        ran = await probe.run(_TASK, timeout_seconds=_COMMAND_S)
        if ran.exit_code == 0 and not ran.timed_out:
            self._found.add("task", "pass", "a command wrote a file, synced it and read it again")
        else:
            why = "did not end in time" if ran.timed_out else f"ended with {ran.exit_code}"
            said = ran.stderr.decode("utf-8", "replace").strip()[-200:]
            self._found.add(
                "task", "fail", f"a command that writes a file and reads it {why}: {said}"
            )

    async def _let_go(self, probe: GuestProbe, profile: AgentProfile) -> tuple[str, ...]:
        """Let the agent's own services run, which nothing but the checks comes after; return which."""
        names = self._agent_units()
        for unit in names:
            self._progress(f"letting {unit} run, for the checks")
            await probe.run(_LET_GO.format(unit=shlex.quote(unit)), timeout_seconds=_COMMAND_S)
        if profile.processes and self._held.still.processes:
            await self._let_processes_go(probe, profile)
        return names

    async def _let_processes_go(self, probe: GuestProbe, profile: AgentProfile) -> None:
        stopped = [p for p in await self._guest.processes() if p.state.startswith(("T", "t"))]
        commands = [process.command for process in stopped]
        fit: set[str] = set()
        for pattern in profile.processes:
            _, fits = await self._fits(profile, pattern, commands)
            fit |= {str(p.pid) for p, is_fit in zip(stopped, fits, strict=True) if is_fit}
        if fit:
            await probe.run(("kill", "-CONT", *sorted(fit)), timeout_seconds=_COMMAND_S)

    async def _fits(
        self, profile: AgentProfile, pattern: str, commands: list[str]
    ) -> tuple[str, list[bool]]:
        """Return which command lines a profile's pattern fits, and why that cannot be told.

        Both may be the machine's own: a careless pattern must not hold up this host.
        """
        from torpor.recovery.checks.facts import Unclear
        from torpor.recovery.checks.regexes import which
        from torpor.recovery.profiles import shipped, shipped_names

        if profile.name in shipped_names() and profile == shipped(profile.name):
            return "", [re.search(pattern, command) is not None for command in commands]
        try:
            return "", await which(pattern, commands)
        except Unclear as exc:
            return str(exc), [False] * len(commands)

    def _agent_units(self) -> tuple[str, ...]:
        """Return the agent's services that are held, as far as they ran; their patterns when that is not known."""
        patterns = self._held.agent_units
        if self._before is None:
            return patterns
        ran = sorted(running(self._before))
        return tuple(dict.fromkeys(n for pattern in patterns for n in fnmatch.filter(ran, pattern)))

    async def _settled(self, profile: AgentProfile) -> None:
        """Look until the agent and the services run, or for so long."""
        self._progress("looking at what runs")
        loop = asyncio.get_running_loop()
        until = loop.time() + _GRACE_S
        while True:
            commands = [process.command for process in await self._guest.processes()]
            fits = [(p, *await self._fits(profile, p, commands)) for p in profile.processes]
            there = [(p, why, any(found)) for p, why, found in fits]
            now = None if self._before is None else await self._taken(profile)
            is_late = not all(is_there or why for _, why, is_there in there) or (
                self._before is not None
                and now is not None
                and missing_units(self._before, now, self._held)
            )
            if not is_late or loop.time() > until:
                break
            await asyncio.sleep(_RETRY_S)
        add_processes(self._found, there)
        if self._before is not None and now is not None:
            add_units(self._found, self._before, now, self._held)

    async def _checks(self, probe: GuestProbe, profile: AgentProfile) -> CheckReport | None:
        from torpor.recovery.checks import parse_checks, run_checks, turn_of

        if self._spec.checks is None:
            return None
        self._progress("running the checks")
        plan = parse_checks(self._spec.checks, source=self._spec.checks_source)
        report = await run_checks(
            plan,
            probe,
            inventory=self._baseline(profile),
            turn=turn_of(profile),
            progress=lambda result: self._progress(f"check {result.key}: {result.status}"),
        )
        add_checks(self._found, report, self._held, is_cold=self._is_cold)
        return report

    def _baseline(self, profile: AgentProfile) -> Baseline | None:
        from torpor.recovery.checks.baseline import Baseline

        if self._before is None:
            return None

        async def taken() -> Inventory:
            found = await self._taken(profile)
            if found is None:
                raise GuestFailed("what the machine holds could not be listed")
            return found

        return Baseline(before=self._before, take=taken)


_LOOKED_AT: tuple[PointName, ...] = ("agent", "files", "services", "task", "schedule")
