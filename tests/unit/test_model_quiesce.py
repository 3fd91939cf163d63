"""What callers may say about quiescing, and what is kept of it."""

from __future__ import annotations

from typing import Any

import pytest

from torpor.errors import GuestFailed, InvalidRequest
from torpor.guest.quiesce import quiet
from torpor.model_quiesce import (
    HookResult,
    HookSpec,
    QuiesceReport,
    QuiesceSpec,
    quiesce_spec,
    report_from_json,
    report_to_json,
)


def test_what_is_meant() -> None:
    assert quiesce_spec(None) == QuiesceSpec()
    given = {
        "hooks": [{"name": "db", "kind": "sqlite", "paths": ["/srv/a.db"], "required": False}],
        "discover": False,
        "on_failure": "downgrade",
        "versions": {"hermes": "hermes --version"},
        "cursor": None,
    }
    assert quiesce_spec(given) == QuiesceSpec(
        hooks=(HookSpec(name="db", kind="sqlite", paths=("/srv/a.db",), required=False),),
        discover=False,
        on_failure="downgrade",
        versions={"hermes": "hermes --version"},
    )
    assert quiesce_spec(quiesce_spec(given)) == quiesce_spec(given)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ([], "list"),
        ({"hook": []}, "'hook' that is not known"),
        ({"hooks": {}}, "list of at most"),
        ({"hooks": [{"kind": "sqlite"}]}, "no name"),
        ({"hooks": [{"name": "a b"}]}, "'a b' is no name"),
        ({"hooks": [{"name": "a"}]}, "neither `prepare` nor `hold`"),
        ({"hooks": [{"name": "a", "kind": "oracle"}]}, "of kind 'oracle'"),
        ({"hooks": [{"name": "a", "kind": "redis", "speed": 1}]}, "'speed'"),
        ({"hooks": [{"name": "a", "kind": "redis"}] * 2}, "two hooks"),
        ({"hooks": [{"name": "a", "kind": "redis", "required": "no"}]}, "true or false"),
        ({"hooks": [{"name": "a", "kind": "redis", "order": 1001}]}, "0 to 1000"),
        ({"hooks": [{"name": "a", "kind": "redis", "hold_max_seconds": 0}]}, "0.1 to 3600"),
        ({"hooks": [{"name": "a", "kind": "redis", "prepare_timeout_seconds": "1"}]}, "0.1 to"),
        ({"hooks": [{"name": "a", "kind": "sqlite", "paths": ["x.db"]}]}, "not an absolute path"),
        ({"hooks": [{"name": "a", "kind": "sqlite", "paths": "/x"}]}, "list of strings"),
        ({"hooks": [{"name": "a", "kind": "sqlite", "paths": ["/x"] * 65}]}, "more than 64"),
        ({"hooks": [{"name": "a", "hold": "x" * 5000}]}, "1 to 4096"),
        ({"hooks": [{"name": "a", "hold": "x\0"}]}, "1 to 4096"),
        ({"on_failure": "ignore"}, "'ignore'"),
        ({"timeout_seconds": float("nan")}, "nan"),
        ({"versions": ["x"]}, "at most 32"),
        ({"versions": {"v": 3}}, "1 to 4096"),
        ({"versions": {"v\n": "x"}}, "is no name"),
        ({"cursor": ""}, "quiesce.cursor"),
        ({"discover": 1}, "quiesce.discover"),
    ],
)
def test_what_cannot_be_right(given: Any, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what):
        quiesce_spec(given)


def test_a_report_is_kept_whole() -> None:
    hook = HookResult(name="a", kind="program", required=True, state="held", held_ms=1.5)
    report = QuiesceReport(
        held=True, confirmed="after", hooks=(hook,), versions={"v": None}, notes=("n",)
    )
    assert report_from_json(report_to_json(report)) == report
    with pytest.raises((KeyError, TypeError, ValueError)):
        report_from_json({**report_to_json(report), "confirmed": "maybe"})


def test_what_a_guest_says_is_bounded_and_cleaned() -> None:
    found = quiet(
        {
            "token": "t" * 1000,
            "held": "yes",
            "left_s": 1e300,
            "hooks": [{"name": "n\033[1m" * 99, "kind": "sqlite", "state": 7, "hold_ms": -1}] * 99,
            "versions": {str(n): "v" * 9999 for n in range(99)},
            "cursor": ["x\n"],
            "notes": "no list",
            "reason": None,
        }
    )
    assert not found.held, "only true is true"
    assert (len(found.token), len(found.hooks), len(found.versions)) == (64, 64, 32)
    assert found.left_seconds == 0
    assert found.hooks[0].state == "skipped"
    assert found.hooks[0].hold_ms is None
    assert found.hooks[0].name.isprintable()
    assert max(len(value or "") for value in found.versions.values()) <= 500
    assert found.cursor == "['x\\n']"
    for nonsense in ({"hooks": ["x"]}, {"hooks": [{"kind": "sql\ninjection"}]}):
        with pytest.raises(GuestFailed):
            quiet(nonsense)


def test_what_looks_like_a_secret_is_not_taken_from_a_guest() -> None:
    secret = "hunter2-0123456789"
    hook = {"name": "a", "kind": "command", "state": "failed", "message": f"PGPASSWORD={secret}"}
    said = f"at https://me:{secret}@host/x"
    found = quiet(
        {"hooks": [hook], "versions": {"v": said}, "cursor": said, "notes": [said], "reason": said}
    )
    assert secret not in str(found)
    assert found.hooks[0].message == "PGPASSWORD=[masked]"
    assert found.cursor == "at https://me:[masked]@host/x"
