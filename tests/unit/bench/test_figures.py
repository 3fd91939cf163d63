"""The arithmetic of figures, and how they are told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from torpor.bench.figures import Figure, Goal, GoalKind, Missed, Series
from torpor.bench.host import HostFacts
from torpor.bench.report import (
    COLUMNS,
    OTHERS_COLUMNS,
    notes,
    number,
    others_rows,
    rows,
    to_json,
)
from torpor.bench.run import GROUPS, Report, choose
from torpor.errors import InvalidRequest


def _figure(ours: float, beside: float | None, goal: Goal | None = None) -> Figure:
    return Figure(
        name="x.y",
        what="a thing",
        unit="ms",
        ours=Series.of([ours]),
        beside=None if beside is None else Series.of([beside]),
        beside_what="" if beside is None else "another",
        goal=goal,
    )


def _report(*figures: Figure, **host_is: Any) -> Report:
    host = HostFacts(
        accel="tcg",
        accel_reason="asked for",
        driver="qemu",
        driver_version="10.0.2",
        emulation="its CPU is translated",
        cpu="a CPU",
        cores=2,
        memory_mib=4096,
        kernel="6.12",
        python="3.11",
        filesystem="ext4",
        reflink=False,
    )
    host = replace(host, **host_is)
    return Report(
        host=host,
        template="base",
        quick=True,
        load_before=(3.0, 1.0, 1.0),
        busy=True,
        figures=list(figures),
        missed=[Missed("crowd", "no disk")],
    )


def test_p99_is_a_value_that_was_measured() -> None:
    assert Series.of([5, 1, 3]).p99 == 5
    assert Series.of([5, 1, 3]).median == 3
    assert Series.of(range(1, 201)).p99 == 198
    assert Series.of([7]).p99 == 7
    with pytest.raises(ValueError, match="at least one"):
        Series.of([])


@pytest.mark.parametrize(
    ("kind", "limit", "ours", "beside", "met"),
    [
        ("ratio at most", 1.25, 125, 100, True),
        ("ratio at most", 1.25, 126, 100, False),
        ("ratio at least", 0.5, 50, 100, True),
        ("ratio at least", 0.5, 49, 100, False),
        ("more by at most", 3, 13, 10, True),
        ("more by at most", 3, 14, 10, False),
        ("at most", 51.2, 51, None, True),
        ("at most", 51.2, 52, None, False),
        ("ratio at most", 1.25, 1, None, None),
    ],
)
def test_goals(
    kind: GoalKind, limit: float, ours: float, beside: float | None, met: bool | None
) -> None:
    assert _figure(ours, beside, Goal(kind, limit)).met is met


def test_a_figure_without_a_goal_is_not_judged() -> None:
    assert _figure(1, 2).met is None
    assert _figure(1, 2).ratio == 0.5
    assert _figure(1, None).ratio is None


def test_the_table_has_all_columns_and_says_what_is_missed() -> None:
    found = rows(_report(_figure(300, 100, Goal("ratio at most", 1.25)), _figure(2.5, None)))
    assert all(len(row) == len(COLUMNS) for row in found)
    assert found[0][1:] == (
        *("300 ms", "300 ms", "1", "100 ms", "100 ms", "1", "3.00"),
        *("≤ 1.25 x: missed", "another"),
    )
    assert found[1][4] == "-"


def test_the_notes_mark_what_is_no_fair_number() -> None:
    text = "\n".join(notes(_report()))
    for word in ("EMULATED", "BUSY", "QUICK", "no disk", "qemu 10.0.2", "3.0"):
        assert word in text


_REAL = {"accel": "kvm", "driver": "firecracker", "emulation": None}


def _timed(name: str, *values: float) -> Figure:
    return Figure(name=name, what=name, unit="ms", ours=Series.of(values))


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (_timed("create.exec", 80, 90, 150), True),
        (_timed("create.exec", 80, 90, 151), False),
        (_timed("create.exec", 91, 91, 91), False),
        (_timed("restore.running", 25), True),
        (_timed("restore.running", 26), False),
        (_timed("fork.live", 101), False),
        (_timed("fork.many.live", 500), True),
    ],
)
def test_the_goals_for_kvm_and_firecracker_are_judged_on_such_a_host_only(
    figure: Figure, met: bool
) -> None:
    report = replace(_report(figure, **_REAL), quick=False)
    (row,) = others_rows(report)
    assert len(row) == len(OTHERS_COLUMNS)
    assert row[4].endswith("ms: met" if met else "ms: missed")
    assert "NOT JUDGED" not in "\n".join(notes(report))
    assert to_json(report)["figures"][0]["kvm_goal"]["met"] is met
    for other in (
        replace(_report(figure, **_REAL | {"emulation": "its CPU is a play"}), quick=False),
        replace(_report(figure, **_REAL | {"driver": "qemu"}), quick=False),
        _report(figure, **_REAL),  # quick
    ):
        assert others_rows(other)[0][4].endswith("ms: not judged")
        assert to_json(other)["figures"][0]["kvm_goal"]["met"] is None


def test_what_others_published_is_marked_as_such() -> None:
    report = _report(_timed("create.exec", 1), _timed("fork.live", 1), _timed("exec.true", 1))
    assert [row[5] for row in others_rows(report)] == ["p50 179 ms, p99 203 ms", "400 to 750 ms"]
    assert "PUBLISHED" in OTHERS_COLUMNS[5]
    text = "\n".join(notes(report))
    assert "PUBLISHED: what others published" in text
    assert "NOT JUDGED" in text
    found = [one["published_by_others"] for one in to_json(report)["figures"]]
    assert found[0] == {"p50": 179, "p99": 203, "least": None, "most": None}
    assert found[2] is None
    quiet = _report(_timed("exec.true", 1))
    assert others_rows(quiet) == []
    assert "PUBLISHED" not in "\n".join(notes(quiet))


def test_the_json_holds_every_value() -> None:
    report = _report(_figure(300, 100, Goal("ratio at most", 1.25)))
    found = json.loads(json.dumps(to_json(report)))
    assert found["host"]["emulated"] is True
    (figure,) = found["figures"]
    assert figure["torpor"] == {"median": 300, "p99": 300, "count": 1, "values": [300]}
    assert (figure["ratio"], figure["met"]) == (3, False)


def test_numbers_have_three_figures() -> None:
    assert number(0.4567, "ms") == "0.46 ms"
    assert number(45.67, "ms") == "45.7 ms"
    assert number(456.7, "MiB") == "457 MiB"
    assert number(12345, "ms") == "12.3 s"


def test_groups_are_chosen_by_name_in_their_own_order() -> None:
    assert choose(None) == tuple(GROUPS)
    assert choose("pause, exec") == ("exec", "pause")
    with pytest.raises(InvalidRequest, match="speed is no figure"):
        choose("exec,speed")
    with pytest.raises(InvalidRequest, match="nothing"):
        choose(",")
