"""Which layers of a chain to merge next. Pure: sizes in, a run out.

A run is chosen by the layers at its beginning alone, so that all snapshots of one family choose the same runs and
share the merged layers; each new run begins where chains already agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from torpor.layers.manifest import LayerRef

DISK_MOST = 12
"""Overlays above the template's disk: each costs every machine a file and a look-up."""
DISK_RUN = 8
DISK_KEPT_MOST = 3
"""Large layers at the beginning that are left alone, so that a large disk is not written anew for every few snapshots."""
RAM_MOST = 32
RAM_RUN = 24
RAM_EXCESS = 2
"""Times its size that the layers of a memory may take."""


def disk_run(chain: Sequence[LayerRef]) -> slice | None:
    """Return the run of a disk's chain to merge; None when it is short enough."""
    if len(chain) <= DISK_MOST:
        return None
    start = 0
    while start < DISK_KEPT_MOST:
        after = chain[start + 1 : start + DISK_RUN]
        if chain[start].size_bytes <= sum(ref.size_bytes for ref in after):
            break
        start += 1
    return slice(start, start + DISK_RUN)


def ram_run(chain: Sequence[LayerRef], ram_bytes: int) -> slice | None:
    """Return the run of a memory's chain to merge; None when it is short and small enough."""
    total = 0
    for count, ref in enumerate(chain, 1):
        total += ref.size_bytes
        if total > RAM_EXCESS * ram_bytes and count > 1:
            return slice(0, count)
    return slice(0, RAM_RUN) if len(chain) > RAM_MOST else None
