"""What one more idle fork costs in RAM."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from torpor.bench.figures import Figure, Goal, Series
from torpor.bench.rig import Rig

_SETTLE_S = 3.0
_GOAL_SHARE = 0.1


def idle_forks(rig: Rig) -> Iterator[Figure]:
    """PSS of the VMMs of ten idle forks: memory of their own, and their share of what they map together."""
    count = rig.times(10, 3)
    with rig.sandbox() as source:
        forks = rig.fork(source, count)
        threading.Event().wait(_SETTLE_S)
        machines = [rig.vmm(fork) for fork in forks]
        whole = [pss_mib(Path(f"/proc/{pid}/smaps_rollup").read_text()) for pid, _ in machines]
        guest = [
            pss_mib(Path(f"/proc/{pid}/smaps").read_text(), image.stat().st_ino)
            for pid, image in machines
        ]
        rig.drop(*forks)
    size = rig.template.ram_mib
    yield Figure(
        name="memory.fork",
        what=f"RAM of one of {count} idle forks of {size} MiB",
        unit="MiB",
        ours=Series.of(whole),
        goal=Goal("at most", round(size * _GOAL_SHARE, 1)),
        note="PSS of the whole VMM; the goal is a tenth of the guest's size",
    )
    yield Figure(
        name="memory.guest",
        what="of that, the guest's own memory",
        unit="MiB",
        ours=Series.of(guest),
        note="PSS of the mapping of the RAM image; the rest is the VMM and, emulated, translated code",
    )


def pss_mib(smaps: str, inode: int | None = None) -> float:
    """Return the PSS in `/proc/PID/smaps` text: all, or that of the mappings of one file."""
    total_kib, ours = 0, inode is None
    for line in smaps.splitlines():
        words = line.split()
        if not words[0].endswith(":"):  # START-END MODE OFFSET DEVICE INODE [PATH]
            ours = inode is None or (len(words) > 4 and words[4] == str(inode))
        elif ours and words[0] == "Pss:":
            total_kib += int(words[1])
    return total_kib / 1024
