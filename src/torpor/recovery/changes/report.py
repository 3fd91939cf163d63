"""The report of a change: what is known of it, in one JSON object that `words` and `page` render.

docs/reference/changes.md describes its fields. It is made anew from the row whenever it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from torpor.base.masking import masked_json
from torpor.db.changes import ChangeRow
from torpor.model_changes import ChangeInfo, ChangeState

VERSION = 1
S = ChangeState
_LINES = 20

OUTSIDE = (
    "What the machine did to others while it was being changed stays done: messages that were sent, payments, pushes, "
    "rows written elsewhere. Torpor cannot take that back, and did not see it."
)
FORGOTTEN = "The agent does not know of it any more, since its memory was put back too: tell it before it does the same again."
TOKENS = (
    "One-time tokens and keys that were used up or renewed in between are the old ones again: sign in again where a "
    "service refuses them."
)


def build(row: ChangeRow, now: datetime) -> dict[str, Any]:
    """Return the report of a change, so far or for good."""
    info, kept = row.info, row.report
    spec = masked_json(row.spec.to_json())
    spec.pop("checks")
    looks = list(kept.get("looks", []))
    last = looks[-1] if looks else {}
    return {
        "version": VERSION,
        "made_at": now.isoformat(),
        "change": info.to_json(),
        "headline": headline(info),
        "asked": spec,
        "steps": list(kept.get("steps", [])),
        "snapshot": kept.get("point"),
        "cursor": cursor(kept.get("point")),
        "command": kept.get("command"),
        "before": kept.get("before"),
        "looks": looks,
        "verdict_reasons": list(last.get("reasons", [])),
        "evidence": list(
            dict.fromkeys(said for look in looks for said in look.get("evidence", []))
        ),
        "passing": passing(last),
        "warnings": list(last.get("warnings", [])),
        "probes": probes(kept.get("before") or {}, last),
        "inventory": kept.get("inventory"),
        "log_lines": log_lines(kept.get("command") or {}, last),
        "failed_state": kept.get("failed_note"),
        "put_back": kept.get("back_note"),
        "undone": kept.get("undone"),
        "next": next_steps(row),
        "not_undone": [*not_undone(info), *kept.get("volumes_left", [])],
    }


def cursor(point: Mapping[str, Any] | None) -> str | None:
    """Return how far the machine's dealings with others had come before the change, or why that is not known."""
    quiesce = (point or {}).get("quiesce") or {}
    notes = (note for note in quiesce.get("notes", []) if note.startswith("cursor: "))
    missed = next(notes, "").removeprefix("cursor: ")
    return quiesce.get("cursor") or (f"not known: {missed}" if missed else None)


def headline(info: ChangeInfo) -> str:
    """Return what became of a change, in one sentence."""
    name = f"Change {info.id} ({info.reason})"
    if info.state is S.KEPT and info.verdict == "inconclusive":
        return f"{name} is kept, but whether it is right could not be told: {info.why}"
    if info.state is S.KEPT:
        return f"{name} is kept: {info.why}"
    if info.state is S.ROLLED_BACK:
        return f"{name} was rolled back: {info.why}"
    if info.state is S.FAILED:
        return f"{name} failed: {info.why}"
    if info.state is S.PROBATION and info.deadline_at is not None:
        ends = (
            "it is rolled back unless it was confirmed"
            if info.require_confirm
            else "it is kept if it still looks right"
        )
        return f"{name} is on probation until {info.deadline_at:%Y-%m-%d %H:%M:%S} UTC; then {ends}"
    return f"{name} is {info.state.replace('_', ' ')}"


def probes(before: Mapping[str, Any], last: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the checks that do not pass now, or did not before, each as it was and as it is."""
    earlier = {c["id"]: c for c in (before.get("checks") or {}).get("checks", [])}
    now = {c["id"]: c for c in (last.get("checks") or {}).get("checks", [])}
    found = []
    for key in [*now, *(key for key in earlier if key not in now)]:
        was, is_now = earlier.get(key), now.get(key)
        outcomes = [None if c is None else c["outcome"] for c in (was, is_now)]
        if outcomes in (["pass", "pass"], ["skipped", "skipped"]) or not now:
            continue
        found.append({"name": key, "before": _side(was), "after": _side(is_now)})
    return found


def passing(last: Mapping[str, Any]) -> list[str]:
    """Return the checks that pass, and what was found."""
    checks = (last.get("checks") or {}).get("checks", [])
    return [f"{c['id']}: {c['reason']}" for c in checks if c["outcome"] == "pass"]


def _side(check: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if check is None:
        return None
    return {
        "outcome": check["outcome"],
        "reason": check["reason"],
        "findings": [f for f in check["findings"] if f["status"] != "pass"],
        "output": check["output"],
    }


def log_lines(command: Mapping[str, Any], last: Mapping[str, Any]) -> list[str]:
    """Return the last lines of what was written by the command, and by the checks that fail."""
    lines: list[str] = []
    if command.get("outcome") not in (None, "ok"):
        for stream in ("stdout_tail", "stderr_tail"):
            lines += str(command.get(stream, "")).splitlines()[-_LINES:]
    for check in (last.get("checks") or {}).get("checks", []):
        if check["outcome"] == "fail":
            lines += [f"{check['id']}: {line}" for line in check["output"].splitlines()[-_LINES:]]
    return lines[-5 * _LINES :]


def next_steps(row: ChangeRow) -> list[dict[str, str]]:
    """Return what can be done now: words, and the command that does it."""
    info = row.info
    found: list[tuple[str, str]] = []
    sandbox, before, failed = info.sandbox_id, info.snapshot_id, info.failed_snapshot_id
    if info.state is S.PROBATION:
        found.append(("keep it now", f"torpor confirm {info.id}"))
    if info.is_open and info.state is not S.ROLLING_BACK:
        found.append(("undo it now", f"torpor change rollback {info.id}"))
    if info.is_open:
        found.append(("see how it stands", f"torpor report {info.id}"))
    if info.state is S.KEPT and before is not None:
        found.append(
            ("go back to before it, whenever", f"torpor rollback {sandbox} {before} --cold")
        )
        found.append(
            ("see which files it changed", f"torpor diff {before} $(torpor snapshot {sandbox})")
        )
        found.append(("free the disk of the way back", f"torpor snapshot rm {before}"))
    if info.state is S.ROLLED_BACK and failed is not None:
        found.append(
            ("look into the machine as it was left, in a copy", f"torpor restore {failed}")
        )
        found.append(("see which files it changed", f"torpor diff {before} {failed}"))
        found.append(("undo the undoing", f"torpor rollback {sandbox} {failed}"))
    if info.state is S.ROLLED_BACK and info.target is not None:
        found.append(("try the same target again", f"torpor change {sandbox} … --force"))
    if info.state is S.FAILED:
        found += _after_failing(row)
    return [{"words": words, "command": command} for words, command in found]


def _after_failing(row: ChangeRow) -> list[tuple[str, str]]:
    sandbox, before = row.info.sandbox_id, row.info.snapshot_id
    again = ("have another machine that is as it was before", f"torpor restore {before}")
    if "gone" in row.notes:
        return [] if before is None else [again]
    if before is None:
        rest = ("try what brings its programs to rest", f"torpor quiesce test {sandbox}")
        insists = row.spec.consistency == "application"
        return [("see how the machine is", f"torpor get {sandbox}"), *([rest] if insists else [])]
    if "undone_from" in row.notes:  # it could not be undone
        return [("put the machine back by hand", f"torpor rollback {sandbox} {before} --cold")]
    return [("see how the machine is", f"torpor get {sandbox}"), again]


def not_undone(info: ChangeInfo) -> list[str]:
    """Return what a rollback does not, or did not, take back."""
    if info.state is S.ROLLED_BACK:
        return [OUTSIDE, FORGOTTEN, TOKENS]
    return [OUTSIDE]
