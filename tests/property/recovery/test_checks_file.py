"""Whatever stands in a checks file, it is read or refused with its place, in little time."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.errors import InvalidRequest
from torpor.recovery.checks import CheckPlan, parse_checks
from torpor.recovery.checks.kinds import KINDS, TIMINGS
from torpor.sdk.checks_file import read_checks

PLACE = re.compile(r"c\.yaml:[0-9]+:[0-9]+: .")
WORDS = sorted({*KINDS, *TIMINGS, "required", "wanted", "defaults", "folders", "exit-status", "stdout", "exists",
                "not", "and", "or", "/x", "tcp:22", "true", "exec", "skills", "rule"})  # fmt: skip
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(WORDS),
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=6)), inner, max_size=4),
    ),
    max_leaves=25,
)


def read(text: str) -> None:
    """Read a file, or see that what is wrong with it is told with a place."""
    told = _told(text)
    if told is None:
        return
    lines = sum(map(text.count, "\n\r\x85\u2028\u2029"))
    assert PLACE.match(told.message), told.message
    assert 1 <= int(str(told.facts["line"])) <= lines + 2


def _told(text: str) -> InvalidRequest | None:
    try:
        parse_checks(text, source="c.yaml")
    except InvalidRequest as told:
        return told
    return None


@given(st.text(max_size=200))
@settings(deadline=2000)
def test_any_text(text: str) -> None:
    read(text)


@given(st.text(alphabet="{}[]:,?-&*!|>'\"%@` \n\t#x0", max_size=120))
@settings(deadline=2000)
def test_any_yaml_like_text(text: str) -> None:
    read(text)


@given(trees)
@settings(deadline=2000)
def test_any_tree(tree: Any) -> None:
    read(json.dumps(tree))


@given(st.sampled_from(sorted(KINDS)), st.dictionaries(st.sampled_from(WORDS), trees, max_size=4))
@settings(deadline=2000)
def test_any_attributes(kind: str, attributes: dict[str, Any]) -> None:
    read(json.dumps({"required": {kind: {"/x": attributes}}}))


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)


@given(
    st.dictionaries(
        names,
        st.fixed_dictionaries(
            {},
            optional={
                "exit-status": st.integers(0, 255),
                "stdout": st.lists(
                    st.text(st.characters(codec="utf-8", exclude_characters="/"), max_size=10),
                    max_size=3,
                ),
                "timeoutSeconds": st.floats(0.1, 3600),
                "failureThreshold": st.integers(1, 100),
                "skip": st.booleans(),
                "title": st.text(max_size=10),
            },
        ),
        min_size=1,
        max_size=5,
    )
)
@settings(deadline=2000)
def test_what_is_right_is_read_as_it_is(commands: dict[str, dict[str, Any]]) -> None:
    text, _ = read_checks({"required": {"command": commands}})
    plan = parse_checks(text, source="c.yaml")
    assert [check.name for check in plan.checks] == list(commands)
    for check, given_ in zip(plan.checks, commands.values(), strict=True):
        assert check.timing.timeout_seconds == given_.get("timeoutSeconds", 10)
        assert check.skip == given_.get("skip", False)
        assert check.wants["exit-status"].value == given_.get("exit-status", 0)
    assert CheckPlan.from_json(plan.to_json()) == plan
