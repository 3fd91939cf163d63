"""Runs our scripts in the machine by its own Python, and believes nothing of what they print but its shape."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torpor.recovery.checks.clean import clean
from torpor.recovery.checks.facts import Broken, Facts, Unclear
from torpor.recovery.checks.matchers import Output, Value
from torpor.recovery.checks.plan import Check
from torpor.recovery.checks.probe import ProbeMachine

_SCRIPTS = Path(__file__).parent / "scripts"
_NO_PYTHON = 126
_FIND_PYTHON = (
    "for p in /usr/bin/python3 /usr/local/bin/python3 python3; do "
    f'command -v "$p" >/dev/null 2>&1 && exec "$p" -I -c "$@"; done; exit {_NO_PYTHON}'
)
"""The system's Python first: one on the agent's own path may be what a change has broken."""
_ANSWER_BYTES = 1 << 20
_LOCK_WAIT_SHARE = 0.5


async def run_script(
    probe: ProbeMachine, name: str, asked: Mapping[str, Any], *, timeout_seconds: float
) -> dict[str, Any]:
    """Return what a script of ours answers.

    Raises:
        TimeoutError: it did not end in time.
        Unclear: the machine has no Python, or the answer is none.
        TorporError: as `ProbeMachine.run`.
    """
    code = await asyncio.to_thread((_SCRIPTS / f"{name}.py").read_text, encoding="utf-8")
    ran = await probe.run(
        ("/bin/sh", "-c", _FIND_PYTHON, "sh", code),
        timeout_seconds=timeout_seconds,
        stdin=json.dumps(asked).encode("ascii"),
        output_limit_bytes=_ANSWER_BYTES,
    )
    if ran.timed_out:
        raise TimeoutError
    if ran.exit_code == _NO_PYTHON:
        raise Unclear("there is no python3 in the machine, which this check needs")
    try:
        answer = json.loads(ran.stdout)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        said = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise Unclear(f"the probe ended with status {ran.exit_code} and no answer: {clean(said)}")
    return answer


async def look_http(check: Check, probe: ProbeMachine, within_s: float) -> Facts:
    """Return what a server answers to a request from inside the machine."""
    asked = {
        **{name: value for name, value in check.options.items() if name != "target"},
        "url": check.target,
        "timeout": within_s,
    }
    answer = await run_script(probe, "http_probe", asked, timeout_seconds=within_s)
    if "error" in answer:
        raise Broken(f"no answer: {clean(str(answer['error']))}")
    try:
        body = base64.b64decode(answer["body"], validate=True).decode("utf-8", "replace")
        headers = "\n".join(map(str, answer["headers"]))
        status = int(answer["status"])
    except (KeyError, TypeError, ValueError, binascii.Error) as exc:
        raise Unclear("the probe's answer is malformed") from exc
    return Facts(
        values={
            "status": status,
            "headers": Output(headers),
            "body": Output(body, is_cut=bool(answer.get("is_cut"))),
        },
        output=clean(body, most=1000),
    )


async def look_sqlite(check: Check, probe: ProbeMachine, within_s: float) -> Facts:
    """Return what an SQLite database is like."""
    asked = {
        "path": check.target,
        "quick-check": "quick-check" in check.wants,
        "write-canary": bool(check.options.get("write-canary")),
        "tables": list(check.options["tables"]),
        "queries": list(check.options["queries"]),
        "lock_wait": within_s * _LOCK_WAIT_SHARE,
    }
    answer = await run_script(probe, "sqlite_probe", asked, timeout_seconds=within_s)
    for name in ("missing", "broken"):
        if name in answer:
            raise Broken(clean(str(answer[name])))
    if "locked" in answer:
        raise Unclear(f"somebody else holds the database: {clean(str(answer['locked']))}")
    try:
        return _sqlite_facts(check, answer)
    except (KeyError, TypeError, AttributeError) as exc:
        raise Unclear("the probe's answer is malformed") from exc


def _sqlite_facts(check: Check, answer: Mapping[str, Any]) -> Facts:
    values: dict[str, Value | None] = {}
    why_not: dict[str, str] = {}
    problems = [str(problem) for problem in answer["problems"]]
    values["quick-check"] = not problems
    values["schema"] = str(answer["schema"])
    if "canary" in answer:
        values["write-canary"] = answer["canary"] == "ok"
    for table in check.options["tables"]:
        rows = answer["rows"][table]
        values[f"rows of {table}"] = rows if isinstance(rows, int) else None
        why_not[f"rows of {table}"] = "there is no such table"
    for sql in check.options["queries"]:
        said = answer["queries"][sql]
        values[f"query {sql}"] = _plain(said.get("value"))
        why_not[f"query {sql}"] = str(said.get("error", "no value"))
    canary = answer.get("canary", "ok")
    problems += [f"canary: {canary}"] if canary != "ok" else []
    return Facts(values=values, why_not=why_not, output=clean("\n".join(problems), most=2000))


def _plain(value: object) -> Value | None:
    if isinstance(value, list):
        return tuple(map(str, value))
    return value if isinstance(value, (bool, int, float, str)) else None
