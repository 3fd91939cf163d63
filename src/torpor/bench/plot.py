"""The plot of snapshot pause against changed memory, as PNG and SVG. Needs the extra `torpor[bench]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torpor.bench.figures import PausePoint

NAME = "pause"


def draw(points: Sequence[PausePoint], folder: Path, *, emulated: bool) -> list[Path]:
    """Write `pause.png` and `pause.svg` into `folder`, which is made if missing; return the files.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    try:
        axes.scatter(
            [p.changed_mib for p in points],
            [p.pause_ms for p in points],
            label="Torpor: the machine stands still",
            color="#1f6f8b",
        )
        copied = [(p.changed_mib, p.copy_ms) for p in points if p.copy_ms is not None]
        axes.scatter(
            [mib for mib, _ in copied],
            [ms for _, ms in copied],
            label="floor: the changed pages copied once by hand",
            color="#c96f2d",
            marker="x",
        )
        axes.set_xlabel("memory changed since the machine's start, MiB")
        axes.set_ylabel("time, ms")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_title("Snapshot pause" + (" (emulated guest)" if emulated else ""))
        axes.grid(alpha=0.3)
        axes.legend()
        files = [folder / f"{NAME}.png", folder / f"{NAME}.svg"]
        for path in files:
            figure.savefig(
                path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None
            )
    finally:
        pyplot.close(figure)
    return files
