"""Create, restore, fork and wake, one at a time and ten at once, beside a bare start, load and cont."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from torpor.bench.channel import took
from torpor.bench.figures import Figure, Goal, Series
from torpor.bench.floor import run
from torpor.bench.rig import Rig
from torpor.sdk.sync_sandbox import Sandbox
from torpor.sdk.sync_snapshots import Snapshot

_BARE = "{vmm} starts, loads and runs the same snapshot"
_READY = "the same, and the agent renews the guest, asked by hand"
_FIRST = "the same, and the agent runs `true`"
_GOAL = Goal("ratio at most", 1.25)
"""Over the bare VMM, and over no other floor."""
_WAYS = {
    "create": "create (the template's snapshot)",
    "restore": "restore",
    "fork": "fork of a snapshot",
    "wake": "wake",
}


def one_at_a_time(rig: Rig) -> Iterator[Figure]:
    """Each way to `running` and to the end of a first `true`, in turns with the floor."""
    running: dict[str, list[float]] = {way: [] for way in (*_WAYS, "live fork")}
    first: dict[str, list[float]] = {way: [] for way in _WAYS}
    floor = _Floor()
    with rig.sandbox() as source:
        snapshot = source.snapshot()
        rig.drop(rig.restore(snapshot))  # makes the RAM image, and warms all paths
        for _ in range(rig.times(10, 2)):
            floor.add(rig, snapshot)
            for way, act in _acts(rig, snapshot).items():
                _ours(rig, act, running[way], first[way])
            asleep = rig.create()
            asleep.hibernate()
            _ours(rig, asleep.wake, running["wake"], first["wake"])
            begun = time.perf_counter()
            forks = rig.fork(source, 1)
            running["live fork"].append((time.perf_counter() - begun) * 1000)
            rig.drop(*forks)
    bare = _BARE.format(vmm=rig.floor.vmm)
    for way, what in _WAYS.items():
        yield _figure(
            f"{way}.running", f"{what} to running", running[way], floor.running, bare, _GOAL
        )
        yield _figure(f"{way}.ready", f"{what} to running", running[way], floor.ready, _READY)
        yield _figure(f"{way}.exec", f"{what} to the first exec", first[way], floor.first, _FIRST)
    yield _figure(
        "fork.live",
        "fork of a running machine, its snapshot included",
        running["live fork"],
        floor.ready,
        _READY,
    )


@dataclass(slots=True)
class _Floor:
    """How far a machine that is restored by hand is after how many milliseconds."""

    running: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    def add(self, rig: Rig, snapshot: Snapshot) -> None:
        """Restore once more."""
        with rig.floor.restored(snapshot.id) as machine:
            at = machine.times.running_s * 1000
            self.running.append(at)
            begun = time.perf_counter()
            with machine.renewed() as agent:
                self.ready.append(at + (time.perf_counter() - begun) * 1000)
                run(agent, "true")
                self.first.append(at + (time.perf_counter() - begun) * 1000)


def ten_at_once(rig: Rig) -> Iterator[Figure]:
    """Ten forks in one call, and ten wakes at once, beside ten machines started by hand at once."""
    count = rig.times(10, 3)
    forked: list[float] = []
    live: list[float] = []
    woken: list[float] = []
    bare: list[float] = []
    ready: list[float] = []
    with rig.sandbox() as source, ThreadPoolExecutor(count) as pool:
        snapshot = source.snapshot()
        rig.drop(rig.restore(snapshot))
        for _ in range(rig.times(3, 1)):
            bare.append(_by_hand_at_once(rig, snapshot, pool, count, renew=False))
            ready.append(_by_hand_at_once(rig, snapshot, pool, count, renew=True))
            begun = time.perf_counter()
            forks = rig.fork(snapshot, count)
            forked.append((time.perf_counter() - begun) * 1000)
            for fork in forks:
                fork.hibernate()
            woken.append(took(partial(_wake_all, pool, forks)))
            rig.drop(*forks)
            begun = time.perf_counter()
            forks = rig.fork(source, count)
            live.append((time.perf_counter() - begun) * 1000)
            rig.drop(*forks)
    at_once = f"{count} times at once: "
    for way, what, values in (
        ("fork", f"{count} forks at once", forked),
        ("wake", f"{count} wakes at once", woken),
    ):
        yield _figure(
            f"{way}.many.running",
            what,
            values,
            bare,
            at_once + _BARE.format(vmm=rig.floor.vmm),
            _GOAL,
        )
        yield _figure(f"{way}.many.ready", what, values, ready, at_once + _READY)
    yield _figure(
        "fork.many.live",
        f"{count} forks of a running machine at once, its snapshot included",
        live,
        ready,
        at_once + _READY,
    )


def _wake_all(pool: ThreadPoolExecutor, sandboxes: list[Sandbox]) -> None:
    list(pool.map(lambda sandbox: sandbox.wake(), sandboxes))


def _acts(rig: Rig, snapshot: Snapshot) -> dict[str, Callable[[], Sandbox]]:
    return {
        "create": rig.create,
        "restore": lambda: rig.restore(snapshot),
        "fork": lambda: rig.fork(snapshot, 1)[0],
    }


def _ours(rig: Rig, act: Callable[[], Sandbox], running: list[float], first: list[float]) -> None:
    begun = time.perf_counter()
    sandbox = act()
    running.append((time.perf_counter() - begun) * 1000)
    sandbox.exec("true", check=True)
    first.append((time.perf_counter() - begun) * 1000)
    rig.drop(sandbox)


def _by_hand_at_once(
    rig: Rig, snapshot: Snapshot, pool: ThreadPoolExecutor, count: int, *, renew: bool
) -> float:
    """Start `count` machines by hand at once and return after how many milliseconds the last one was there.

    All of them run until then, as forks do.
    """
    with contextlib.ExitStack() as stack:
        begun = time.perf_counter()

        def one(_: int) -> float:
            machine = stack.enter_context(rig.floor.restored(snapshot.id))
            if renew:
                with machine.renewed():
                    pass
            return (time.perf_counter() - begun) * 1000

        return max(pool.map(one, range(count)))


def _figure(
    name: str,
    what: str,
    ours: list[float],
    bare: list[float],
    beside: str,
    goal: Goal | None = None,
) -> Figure:
    return Figure(
        name=name,
        what=what,
        unit="ms",
        ours=Series.of(ours),
        beside=Series.of(bare),
        beside_what=beside,
        goal=goal,
    )
