"""Reports: every state has words, and nothing from a machine gets out of its place."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from torpor.db.changes import ChangeRow, folded
from torpor.errors import WrongState
from torpor.model import SandboxId, SnapshotId
from torpor.model_changes import (
    ENDED,
    ChangeId,
    ChangeInfo,
    ChangeSpec,
    ChangeState,
    ChangeVerdict,
)
from torpor.recovery.changes.page import page
from torpor.recovery.changes.report import build
from torpor.recovery.changes.table import BUSY, MOVES, check_move
from torpor.recovery.changes.words import text

S = ChangeState
T0 = datetime(2026, 11, 29, 12, tzinfo=UTC)
EVIL = '</pre><script>alert("x")</script>\x1b[2J\r'


def info(state: ChangeState = S.ROLLED_BACK, **changes: Any) -> ChangeInfo:
    made = ChangeInfo(
        id=ChangeId("chg_00000000000000000001"),
        sandbox_id=SandboxId("sbx_00000000000000000002"),
        state=state,
        reason=EVIL,
        author=EVIL,
        target=EVIL,
        kind="command",
        command=EVIL,
        memory="cold",
        created_at=T0,
        updated_at=T0,
        why=EVIL,
        ended_at=T0 if state in ENDED else None,
        snapshot_id=SnapshotId("snap_00000000000000000003"),
        failed_snapshot_id=SnapshotId("snap_00000000000000000004"),
    )
    return replace(made, **changes)


def check(outcome: str) -> dict[str, Any]:
    finding = {"attribute": EVIL, "wanted": EVIL, "found": EVIL, "status": outcome}
    return {
        "id": f"required/command:{EVIL}",
        "outcome": outcome,
        "reason": EVIL,
        "findings": [finding],
        "output": f"line one\n{EVIL}",
    }


def row(state: ChangeState = S.ROLLED_BACK, **changes: Any) -> ChangeRow:
    command = {
        "outcome": "failed", "why": EVIL, "command": EVIL, "exec_id": "exec_1", "exit_code": 3, "signal": None,
        "duration_ms": 4, "stdout_bytes": 9, "stderr_bytes": 9, "stdout_tail": f"out\n{EVIL}", "stderr_tail": EVIL,
    }  # fmt: skip
    return ChangeRow(
        info(state, **changes),
        ChangeSpec(reason=EVIL, command=EVIL, checks="required: {}"),
        report={
            "steps": [{"name": "verify", "started_at": T0.isoformat(), "duration_ms": 1500, "outcome": EVIL * 9}],
            "point": {"id": "snap_3", "label": EVIL, "consistency": "filesystem", "size_bytes": 1, "pause_ms": 2.0,
                      "quiesce": {"cursor": "outbox 41"}},
            "command": command,
            "before": {"checks": {"checks": [check("pass")]}},
            "looks": [{"checks": {"checks": [check("fail")]}, "reasons": [EVIL], "warnings": [EVIL]}],
            "inventory": {"sentences": [EVIL], "forbidden": [EVIL]},
            "failed_note": EVIL,
            "back_note": EVIL,
        },
    )  # fmt: skip


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_whole_and_what_a_machine_says_stays_text() -> None:
    found = page(build(row(), T0))
    reader = Reader()
    reader.feed(found)
    assert reader.open == []
    known = "html head meta title style body h1 h2 p table tr th td span br small ul li pre code"
    assert reader.tags <= {*known.split(" ")}
    assert not [
        name for name, _ in reader.attributes if name.startswith("on") or name in ("src", "href")
    ]
    assert "\x1b" not in found
    assert "&lt;script&gt;" in found
    assert "default-src 'none'" in found
    assert "outbox 41" in found


def test_text_steers_no_terminal() -> None:
    found = text(build(row(), T0))
    assert re.fullmatch(r"[\x20-\x7e\n…]*", found)
    assert "before  pass" in found
    assert "cursor    outbox 41\n" in found
    assert "after   fail" in found


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("verdict", [None, "kept", "inconclusive"])
def test_every_state_has_words(state: ChangeState, verdict: ChangeVerdict | None) -> None:
    deadline = T0 + timedelta(minutes=10) if state is S.PROBATION else None
    report = build(row(state, verdict=verdict, deadline_at=deadline), T0)
    assert report["headline"].startswith("Change chg_00000000000000000001")
    assert "stays done" in report["not_undone"][0]
    assert len(report["not_undone"]) == (3 if state is S.ROLLED_BACK else 1)
    assert text(report)
    assert page(report)
    commands = [step["command"] for step in report["next"]]
    assert any("torpor confirm" in c for c in commands) is (state is S.PROBATION)
    can_be_undone = state not in ENDED and state is not S.ROLLING_BACK
    assert any("torpor change rollback" in c for c in commands) is can_be_undone
    told = any(c.startswith("torpor diff snap_") for c in commands)
    assert told is (state in (S.KEPT, S.ROLLED_BACK)), "one command that says which files"
    assert "checks" not in report["asked"]


@pytest.mark.parametrize(
    ("must_confirm", "then"),
    [
        (True, "it is rolled back unless it was confirmed"),
        (False, "it is kept if it still looks right"),
    ],
)
def test_what_ends_a_probation_is_said_first(must_confirm: bool, then: str) -> None:
    deadline = T0 + timedelta(minutes=10)
    on_probation = row(S.PROBATION, deadline_at=deadline, require_confirm=must_confirm)
    headline = build(on_probation, T0)["headline"]
    assert headline.endswith(f"is on probation until 2026-11-29 12:10:00 UTC; then {then}")


def test_a_cursor_that_is_not_known_says_why() -> None:
    one = row()
    quiesce = {"cursor": None, "notes": ["version of x: no", "cursor: status 1, none is there"]}
    point = {**one.report["point"], "quiesce": quiesce}
    report = build(replace(one, report={**one.report, "point": point}), T0)
    assert "cursor    not known: status 1, none is there\n" in text(report)
    point["quiesce"] = None
    assert build(replace(one, report={**one.report, "point": point}), T0)["cursor"] is None


def test_a_report_of_nothing_yet() -> None:
    report = build(ChangeRow(info(S.IDLE), ChangeSpec(reason="x", command="y")), T0)
    assert report["probes"] == []
    assert text(report)
    assert page(report)


def test_checks_that_came_or_went_are_told() -> None:
    one = row()
    gone = replace(
        one,
        report={**one.report, "looks": [{"checks": {"checks": [check("pass") | {"id": "new"}]}}]},
    )
    names = {
        p["name"]: (p["before"] is None, p["after"] is None) for p in build(gone, T0)["probes"]
    }
    assert names == {"new": (True, False), f"required/command:{EVIL}": (False, True)}


def test_of_many_checks_that_pass_text_names_the_first_and_a_page_all() -> None:
    one = row()
    checks = [check("pass") | {"id": f"check {n}", "reason": "fine"} for n in range(25)]
    report = build(
        replace(one, report={**one.report, "looks": [{"checks": {"checks": checks}}]}), T0
    )
    assert "check 19: fine" in text(report)
    assert "check 20: fine" not in text(report)
    assert "and 5 more" in text(report)
    assert "check 24: fine" in page(report)


def test_values_survive_json() -> None:
    for state in S:
        found = info(state, deadline_at=T0)
        assert ChangeInfo.from_json({**found.to_json(), "newer": 1}) == found
    spec = ChangeSpec(reason="x", command="y", allow=("jobs", "ports"), interval_seconds=3)
    assert ChangeSpec.from_json({**spec.to_json(), "newer": 1}) == spec


def test_the_table_leads_to_an_end_from_everywhere() -> None:
    for state in S:
        seen, todo = set(), [state]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += MOVES[at]
        assert seen & ENDED
        assert bool(MOVES[state]) is (state not in ENDED)
        if state in (S.CHANGING, S.VERIFYING, S.PROBATION):
            assert S.ROLLING_BACK in MOVES[state]
    assert not BUSY & ENDED
    check_move(ChangeId("chg_x"), S.IDLE, S.IDLE)
    with pytest.raises(WrongState, match="cannot become kept"):
        check_move(ChangeId("chg_x"), S.CHANGING, S.KEPT)


def test_targets_are_found_again_however_they_are_written() -> None:
    assert folded("  Hermes   0.19 ") == folded("hermes 0.19")
    assert folded("hermes 0.19") != folded("hermes 0.20")
