"""Quotas of volumes, by the daemon's environment: how many, how large each, how large all together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torpor.base.units import GIB, MIB, format_bytes
from torpor.errors import InvalidRequest, LimitExceeded

COUNT = "TORPOR_MAX_VOLUMES"
EACH = "TORPOR_MAX_VOLUME_GIB"
ALL = "TORPOR_MAX_VOLUMES_GIB"

LEAST_BYTES = 64 * MIB
"""A smaller ext4 has hardly room for its journal."""


@dataclass(frozen=True, slots=True)
class VolumeQuota:
    """What volumes may be."""

    max_volumes: int = 1000
    max_each_bytes: int = 16384 * GIB
    max_all_bytes: int | None = None
    """Of the sizes that were promised, not of what was written; None: as the disk has."""

    @staticmethod
    def of(environment: Mapping[str, str]) -> VolumeQuota:
        """Return the quotas that the environment names. Raises `InvalidRequest` for a value that is none."""
        usual = VolumeQuota()
        count = _number(COUNT, environment.get(COUNT))
        each, together = _number(EACH, environment.get(EACH)), _number(ALL, environment.get(ALL))
        return VolumeQuota(
            usual.max_volumes if count is None else int(count),
            usual.max_each_bytes if each is None else int(each * GIB),
            usual.max_all_bytes if together is None else int(together * GIB),
        )

    def check(self, size_bytes: int, others: Mapping[str, int]) -> None:
        """Raise unless a volume of that size may be beside `others` (sizes by id).

        Raises:
            InvalidRequest: it is too small.
            LimitExceeded: a quota is full; the message has the numbers.
        """
        if size_bytes < LEAST_BYTES:
            raise InvalidRequest(
                f"a volume of {format_bytes(size_bytes)} is too small; {format_bytes(LEAST_BYTES)} or more is wanted",
                hint="size_gib is in GiB",
            )
        if size_bytes > self.max_each_bytes:
            raise LimitExceeded(
                f"a volume of {format_bytes(size_bytes)} is too large; {format_bytes(self.max_each_bytes)} are allowed",
                hint=f"ask for less, or start the daemon with a larger {EACH}",
                size_bytes=size_bytes,
                max_bytes=self.max_each_bytes,
            )
        self.check_together([size_bytes], others)

    def check_together(
        self, sizes: Sequence[int], others: Mapping[str, int], way: str = ""
    ) -> None:
        """Raise `LimitExceeded` unless volumes of those sizes may be beside `others`; `way`: around making them."""
        if not sizes:
            return
        if len(others) + len(sizes) > self.max_volumes:
            more = "" if len(sizes) == 1 else f", and {len(sizes)} more are wanted"
            raise LimitExceeded(
                f"there are {len(others)} volumes{more}; {self.max_volumes} are allowed",
                hint=f"{way}delete some (torpor volume ls), or start the daemon with a larger {COUNT}",
                volumes=len(others),
            )
        total = sum(others.values()) + sum(sizes)
        if self.max_all_bytes is not None and total > self.max_all_bytes:
            raise LimitExceeded(
                f"all volumes together would be {format_bytes(total)}; {format_bytes(self.max_all_bytes)} are allowed",
                hint=f"{way}delete some (torpor volume ls), or start the daemon with a larger {ALL}",
                total_bytes=total,
                max_bytes=self.max_all_bytes,
            )


def size_of_gib(size_gib: float) -> int:
    """Return a size in bytes, rounded up to whole MiB. Raises `InvalidRequest` for what is no size."""
    if not math.isfinite(size_gib) or not 0 < size_gib <= 1 << 20:
        raise InvalidRequest(f"size_gib is {size_gib}; a number above 0 is wanted", hint="give GiB")
    return math.ceil(size_gib * GIB / MIB) * MIB


def _number(name: str, text: str | None) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise InvalidRequest(
            f"{name} is {text!r}; a number above 0 is wanted",
            hint=f"correct {name} or leave it out",
        )
    return value
