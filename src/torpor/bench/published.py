"""What a figure should be on a host with KVM and Firecracker, and what others published of the same act.

Neither is measured here: the goals are judged on a host of that kind only, and the published figures are from hosts
and machines of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torpor.bench.figures import Series


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds: of the middle of all tries and of 99 in 100, or from the least to the most."""

    p50: float | None = None
    p99: float | None = None
    least: float | None = None
    most: float | None = None

    def words(self, sign: str = "") -> str:
        """Return them as people read them, each behind `sign`."""
        if self.least is not None and self.most is not None:
            return f"{self.least:g} to {self.most:g} ms"
        named = (("p50", self.p50), ("p99", self.p99))
        return ", ".join(f"{name} {sign}{value:g} ms" for name, value in named if value is not None)

    def met(self, series: Series) -> bool:
        """Return whether no value exceeds these."""
        return (self.p50 is None or series.median <= self.p50) and (
            self.p99 is None or series.p99 <= self.p99
        )


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What one figure is held against."""

    goal: Times | None = None
    published: Times | None = None


YARDSTICKS: Final = {
    "create.exec": Yardstick(Times(90, 150), Times(179, 203)),
    "restore.running": Yardstick(Times(25), Times(49)),
    "fork.live": Yardstick(Times(100), Times(least=400, most=750)),
    "fork.many.live": Yardstick(Times(500)),
    "pause.8": Yardstick(),
}
"""By the figure's name, in the order in which they are shown."""
