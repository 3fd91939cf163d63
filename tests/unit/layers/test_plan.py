"""Which layers are merged next."""

from __future__ import annotations

import random

from torpor.layers import plan
from torpor.layers.manifest import LayerRef
from torpor.layers.plan import disk_run, ram_run


def _chain(*sizes: int) -> list[LayerRef]:
    return [LayerRef(f"lyr_{n}", size, "") for n, size in enumerate(sizes)]


def test_short_chains_are_left_alone() -> None:
    assert disk_run(_chain(*[1] * plan.DISK_MOST)) is None
    assert ram_run(_chain(*[1] * plan.RAM_MOST), 1000) is None
    assert ram_run(_chain(5000), 1000) is None, "one layer cannot be fewer"


def test_a_disk_begins_with_the_oldest_that_are_not_much_larger_than_the_rest() -> None:
    assert disk_run(_chain(*[1] * 13)) == slice(0, 8)
    assert disk_run(_chain(100, *[1] * 12)) == slice(1, 9)
    assert disk_run(_chain(10000, 100, *[1] * 11)) == slice(2, 10)
    assert disk_run(_chain(*(2 ** (20 - n) for n in range(13)))) == slice(3, 11)


def test_a_memory_is_merged_when_it_has_many_layers_or_large_ones() -> None:
    assert ram_run(_chain(*[1] * 33), 1000) == slice(0, 24)
    assert ram_run(_chain(1000, 600, 600, 600), 1000) == slice(0, 3)
    assert ram_run(_chain(1000, 600, 400), 1000) is None


def test_families_choose_the_same_runs() -> None:
    sizes = [random.Random(3).randrange(1, 1000) for _ in range(60)]
    runs = {str(disk_run(_chain(*sizes[:length]))) for length in range(13, 60)}
    assert len(runs) == 1


def test_merging_ends_and_copies_each_byte_a_few_times() -> None:
    """300 snapshots of a sandbox that writes 10 each time: what is written again is bounded."""
    chain: list[LayerRef] = [LayerRef("first", 5000, "")]
    copied = 0
    for number in range(300):
        chain.append(LayerRef(f"lyr_{number}", 10, ""))
        while (run := disk_run(chain)) is not None:
            size = sum(ref.size_bytes for ref in chain[run])
            copied += size
            chain[run] = [LayerRef(f"merged_{number}", size, "")]
        assert len(chain) <= plan.DISK_MOST
    assert copied < 6 * 300 * 10
