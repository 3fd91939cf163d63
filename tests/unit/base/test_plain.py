"""Dataclasses as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import pytest

from torpor.base.plain import from_plain, to_plain


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    at: datetime
    colour: Colour


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    inner: tuple[Inner, ...]
    pair: tuple[int, str]
    counts: Mapping[str, int]
    share: float
    anything: object
    maybe: Inner | None = None
    names: list[str] = field(default_factory=list)


INNER = Inner(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), Colour.RED)
OUTER = Outer("n", (INNER,), (1, "one"), {"a": 2}, 0.5, {"deep": [None, True]}, INNER, ["x"])


def test_what_was_written_is_read() -> None:
    text = json.dumps(to_plain(OUTER))
    assert from_plain(Outer, json.loads(text)) == OUTER
    assert json.loads(text)["inner"][0] == {
        "at": "2026-01-02T03:04:05.000006+00:00",
        "colour": "red",
    }


def test_a_newer_end_may_say_more_and_an_older_one_less() -> None:
    plain = to_plain(OUTER)
    del plain["maybe"], plain["names"]
    plain["more"] = 1
    found = from_plain(Outer, plain)
    assert (found.maybe, found.names) == (None, [])


def test_a_whole_number_is_a_float_where_one_is_wanted() -> None:
    plain = {**to_plain(OUTER), "share": 1}
    assert isinstance(from_plain(Outer, plain).share, float)


@pytest.mark.parametrize(
    "change",
    [
        {"inner": [{"at": "yesterday", "colour": "red"}]},
        {"inner": [{"at": "2026-01-02T03:04:05+00:00", "colour": "blue"}]},
        {"inner": 5},
        {"pair": [1]},
        {"inner": [{}]},
        {"counts": 3},
    ],
    ids=str,
)
def test_what_is_of_another_shape_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_plain(Outer, {**to_plain(OUTER), **change})


def test_what_has_no_json_form_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="bytes has no JSON form"):
        to_plain(b"x")
