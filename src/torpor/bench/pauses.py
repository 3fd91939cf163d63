"""What a snapshot costs: the pause, the bytes it writes, and whether the disk's size matters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from torpor.base.units import MIB
from torpor.bench.copying import Copied, copy_changed
from torpor.bench.figures import Figure, Goal, PausePoint, Series
from torpor.bench.rig import Rig, root
from torpor.sdk.sync_sandbox import Sandbox

_FILL = "mount -o remount,size=90% /dev/shm && head -c {mib}M /dev/urandom > /dev/shm/fill"
_WORK = "head -c 1M /dev/urandom > /var/tmp/work; sync"


def pause(rig: Rig, points: list[PausePoint]) -> Iterator[Figure]:
    """The pause against changed memory, beside one copy of the very same pages by hand.

    Each point is a fresh machine with so many MiB of random bytes written to tmpfs. Its changed pages are
    copied by hand while it is paused, before the snapshot or, every second time, after it. What is written is at most
    half of the machine's memory.
    """
    sizes = rig.times_of((8, 64, 256), (8, 32))
    for mib in (size for size in sizes if size <= rig.template.ram_mib // 2):
        found = [_pause_once(rig, mib, hand_first=n % 2 == 0) for n in range(rig.times(4, 1))]
        points += found
        copies = [point.copy_ms for point in found if point.copy_ms is not None]
        changed = Series.of(point.changed_mib for point in found).median
        yield Figure(
            name=f"pause.{mib}",
            what=f"snapshot pause, {mib} MiB written ({changed:.0f} MiB changed)",
            unit="ms",
            ours=Series.of(point.pause_ms for point in found),
            beside=Series.of(copies) if copies else None,
            beside_what="the changed pages copied once by hand",
            goal=Goal("ratio at most", 1.5),
            note="" if copies else "this user may not read the memory of the VMM",
        )


def written(rig: Rig) -> Iterator[Figure]:
    """Bytes on disk of each of ten snapshots in a row, of an idle machine and of one that works."""
    count = rig.times(10, 3)
    for name, what, between in (
        ("idle", "idle", lambda _: None),
        ("work", "1 MiB written in between", lambda sandbox: root(sandbox, _WORK)),
    ):
        yield Figure(
            name=f"bytes.{name}",
            what=f"bytes a snapshot writes, {what}",
            unit="MiB",
            ours=Series.of(_sizes(rig, count, between)),
            note="the first, with all that changed since the create, is left out",
        )


def disk_size(rig: Rig) -> Iterator[Figure]:
    """The pause with a large disk beside the pause with the template's own."""
    large = rig.template.disk_gib * 8
    small_ms: list[float] = []
    large_ms: list[float] = []
    with rig.sandbox() as small, rig.sandbox(disk_gib=large) as big:
        threading.Event().wait(rig.times(20, 2))  # the kernel prepares what the file system grew by
        for round_ in range(1 + rig.times(10, 2)):
            for sandbox, found in ((small, small_ms), (big, large_ms)):
                pause_ms = sandbox.snapshot().pause_ms
                if round_:  # the first holds all that changed since the create
                    found.append(pause_ms)
    yield Figure(
        name="disk.pause",
        what=f"snapshot pause with a disk of {large} GiB, idle",
        unit="ms",
        ours=Series.of(large_ms),
        beside=Series.of(small_ms),
        beside_what=f"the same with {rig.template.disk_gib} GiB",
    )


def _pause_once(rig: Rig, mib: int, *, hand_first: bool) -> PausePoint:
    with rig.sandbox() as sandbox:
        root(sandbox, _FILL.format(mib=mib))
        copied = _by_hand(rig, sandbox) if hand_first else None
        pause_ms = sandbox.snapshot().pause_ms
        copied = copied or _by_hand(rig, sandbox)
    if copied is None:
        return PausePoint(float(mib), pause_ms, None)
    return PausePoint(copied.mib, pause_ms, copied.seconds * 1000)


def _by_hand(rig: Rig, sandbox: Sandbox) -> Copied | None:
    """Copy the changed pages of a sandbox while it is paused; None when we may not read them."""
    pid, image = rig.vmm(sandbox)
    out = rig.folder / "pages"
    sandbox.pause()
    try:
        return copy_changed(pid, image, out)
    except PermissionError:
        return None
    finally:
        out.unlink(missing_ok=True)
        sandbox.resume()


def _sizes(rig: Rig, count: int, between: Callable[[Sandbox], object]) -> list[float]:
    with rig.sandbox() as sandbox:
        sandbox.snapshot()
        found = []
        for _ in range(count):
            between(sandbox)
            found.append(sandbox.snapshot().size_bytes / MIB)
    return found
