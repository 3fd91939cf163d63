"""A run's result as tables for people and as JSON for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torpor.bench.figures import Figure, Series, Unit
from torpor.bench.published import YARDSTICKS, Yardstick
from torpor.bench.run import Report

COLUMNS = ("FIGURE", "TORPOR", "P99", "N", "BESIDE", "P99", "N", "RATIO", "GOAL", "BESIDE WHAT")

OTHERS_COLUMNS = (
    "FIGURE",
    "TORPOR",
    "P99",
    "N",
    "GOAL (KVM, FIRECRACKER)",
    "PUBLISHED BY OTHERS",
)

FORMAT = 1


def rows(report: Report) -> list[tuple[str, ...]]:
    """Return one row a figure, for `COLUMNS`."""
    return [_row(figure) for figure in report.figures]


def others_rows(report: Report) -> list[tuple[str, ...]]:
    """Return the figures that have a goal for KVM and Firecracker, or that others published too, for `OTHERS_COLUMNS`."""
    found = {figure.name: figure for figure in report.figures}
    return [
        (
            found[name].what,
            *_cells(found[name].ours, found[name].unit),
            "-"
            if stick.goal is None
            else f"{stick.goal.words('≤ ')}: {_WORDS[_met(report, found[name])]}",
            "-" if stick.published is None else stick.published.words(),
        )
        for name, stick in YARDSTICKS.items()
        if name in found
    ]


def notes(report: Report) -> list[str]:
    """Return what has to be said beside the numbers."""
    host = report.host
    found = [
        f"{host.driver} {host.driver_version}, {host.accel}: {host.accel_reason}",
        f"{host.cpu}, {host.cores} cores, {host.memory_mib} MiB, kernel {host.kernel}, "
        f"{host.filesystem} {'with' if host.reflink else 'without'} reflink, Python {host.python}",
        f"load average before {_load(report.load_before)}, after {_load(report.load_after)}",
    ]
    if host.emulated:
        found.append(f"EMULATED: {host.emulation}")
    if others_rows(report):
        found.append(
            "PUBLISHED: what others published is from their hosts and machines and was not measured here"
        )
    if others_rows(report) and not host.is_for_goals:
        found.append(
            "NOT JUDGED: the goals for KVM and Firecracker are judged where both are, on a host that is not emulated"
        )
    if report.busy:
        found.append("BUSY: others used this machine; the numbers are not its best")
    if report.quick:
        found.append(
            "QUICK: few samples and small sizes; good to see that it works, not to compare"
        )
    found += [f"{figure.name}: {figure.note}" for figure in report.figures if figure.note]
    found += [f"{missed.name} was not measured: {missed.why}" for missed in report.missed]
    return found


def to_json(report: Report) -> dict[str, Any]:
    """Return the whole result; times in ms, sizes in MiB."""
    return {
        "format": FORMAT,
        "host": asdict(report.host) | {"emulated": report.host.emulated},
        "template": report.template,
        "quick": report.quick,
        "busy": report.busy,
        "load_before": report.load_before,
        "load_after": report.load_after,
        "figures": [_figure(figure) | _others(report, figure) for figure in report.figures],
        "pauses": [asdict(point) for point in report.pauses],
        "missed": [asdict(missed) for missed in report.missed],
    }


def number(value: float, unit: Unit) -> str:
    """Return a value with its unit, in three figures."""
    if unit == "ms" and value >= 10_000:
        return f"{value / 1000:.1f} s"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


_WORDS = {True: "met", False: "missed", None: "not judged"}


def _row(figure: Figure) -> tuple[str, ...]:
    beside = ("-", "-", "-")
    if figure.beside is not None:
        beside = _cells(figure.beside, figure.unit)
    goal = "-"
    if figure.goal is not None:
        goal = f"{figure.goal.words(figure.unit)}: {_WORDS[figure.met]}"
    ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f}"
    return (
        figure.what,
        *_cells(figure.ours, figure.unit),
        *beside,
        ratio,
        goal,
        figure.beside_what or "-",
    )


def _cells(series: Series, unit: Unit) -> tuple[str, str, str]:
    return number(series.median, unit), number(series.p99, unit), str(series.count)


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "what": figure.what,
        "unit": figure.unit,
        "torpor": _series(figure.ours),
        "beside": None if figure.beside is None else _series(figure.beside),
        "beside_what": figure.beside_what or None,
        "ratio": figure.ratio,
        "goal": None if figure.goal is None else asdict(figure.goal),
        "met": figure.met,
        "note": figure.note or None,
    }


def _others(report: Report, figure: Figure) -> dict[str, Any]:
    """Return what a figure is held against that was not measured here."""
    stick = YARDSTICKS.get(figure.name, Yardstick())
    return {
        "kvm_goal": None
        if stick.goal is None
        else asdict(stick.goal) | {"met": _met(report, figure)},
        "published_by_others": None if stick.published is None else asdict(stick.published),
    }


def _met(report: Report, figure: Figure) -> bool | None:
    """Return whether a figure's goal for KVM and Firecracker is met; None where that is not judged."""
    goal = YARDSTICKS[figure.name].goal
    if goal is None or report.quick or not report.host.is_for_goals:
        return None
    return goal.met(figure.ours)


def _series(series: Series) -> dict[str, Any]:
    return {
        "median": series.median,
        "p99": series.p99,
        "count": series.count,
        "values": list(series.values),
    }


def _load(load: tuple[float, float, float]) -> str:
    return " ".join(f"{value:.1f}" for value in load)
