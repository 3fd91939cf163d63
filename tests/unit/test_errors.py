from __future__ import annotations

import json
from pathlib import Path

import pytest

from torpor import errors


def test_every_error_has_its_own_code_and_a_name_in_all() -> None:
    found = list(errors.catalogue())
    assert len({e.code for e in found}) == len(found)
    assert {e.__name__ for e in found} <= set(errors.__all__)
    assert list(errors.__all__) == sorted(errors.__all__)
    assert all(400 <= e.http_status < 600 and 0 < e.exit_code < 128 for e in found)


@pytest.mark.parametrize("cls", list(errors.catalogue()), ids=lambda c: c.__name__)
def test_every_error_survives_the_wire(cls: type[errors.TorporError]) -> None:
    sent = cls(
        "sandbox sbx_1 is gone",
        hint="create one",
        path=Path("/x"),
        many=(1, "a", None),
        message="fact",
    )
    wire = json.loads(json.dumps(errors.error_to_wire(sent)))
    assert wire["error"] == "sandbox sbx_1 is gone"
    got = errors.error_from_wire(wire)
    assert type(got) is cls
    assert (got.message, got.hint) == (sent.message, sent.hint)
    assert got.facts["path"] == "/x"
    assert got.facts["many"] == [1, "a", None]


def test_an_unknown_or_odd_body_becomes_the_base_error() -> None:
    for body in (
        {},
        {"error": "x", "code": "of.the.future", "facts": []},
        {"error": None, "hint": 3},
    ):
        assert type(errors.error_from_wire(body)) is errors.TorporError
