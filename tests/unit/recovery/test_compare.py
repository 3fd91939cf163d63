"""What differs between two inventories, what is not known, and how it is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.recovery.inventories import digest, entry, inventory, section
from torpor.errors import DataDamaged, InvalidRequest
from torpor.model_inventory import inventory_from_json
from torpor.model_inventory_diff import CHANGES_MOST, compare
from torpor.model_inventory_rules import DEFAULT_RULES, check_rules, violations


def test_the_words_of_someone_who_runs_an_agent() -> None:
    before = inventory(
        {
            "skills": section(
                entry("notes", content="1"), entry("mail", content="1"), entry("web")
            ),
            "jobs": section(
                entry("daily", {"name": "Daily"}, prompt="say hello"),
                entry("weekly", {"name": "Weekly"}, prompt="sum up"),
            ),
            "debian": section(entry("openssl", {"version": "3.0.1"})),
            "models": section(entry("default", {"value": "big-5"})),
            "env": section(entry("/root/.env: TOKEN", value="s")),
            "tables": section(entry("state.db: messages", {"rows": 120})),
            "units": section(entry("a.service", {"restarts": 0, "state": "active"})),
        }
    )
    after = inventory(
        {
            "skills": section(entry("web")),
            "jobs": section(
                entry("daily", {"name": "Daily"}, prompt="say goodbye"),
                entry("weekly", {"name": "Weekly"}, prompt="sum up"),
            ),
            "debian": section(entry("openssl", {"version": "3.0.2"})),
            "models": section(entry("default", {"value": "big-6"})),
            "env": section(),
            "tables": section(entry("state.db: messages", {"rows": 3})),
            "units": section(entry("a.service", {"restarts": 4, "state": "active"})),
        }
    )
    assert compare(before, after).sentences() == (
        "model default big-5 -> big-6",
        "2 skills gone: mail, notes",
        "1 job prompt changed: daily",
        "1 environment variable gone: /root/.env: TOKEN",
        "table state.db: messages: 120 -> 3 rows",
        "service a.service: restarted 4 times more",
        "package openssl 3.0.1 -> 3.0.2",
    )
    back = compare(after, before)
    assert "2 skills new: mail, notes" in back.sentences()
    assert "package openssl 3.0.2 -> 3.0.1" in back.sentences()


def test_equal_inventories_do_not_differ() -> None:
    one = inventory({"skills": section(entry("a", {"files": 1}, content="x"))})
    diff = compare(one, one)
    assert diff.is_empty
    assert diff.sentences() == ()
    assert diff.not_compared == ()


def test_what_is_not_known_is_no_difference_and_is_said() -> None:
    before = inventory(
        {
            "files": section(entry("/a", content="1"), entry("/b", unknown=("content",))),
            "jobs": section(entry("x", prompt="p")),
            "skills": section(entry("a"), entry("b"), is_complete=False),
        }
    )
    after = inventory(
        {
            "files": section(entry("/a", content="2"), entry("/b", content="9")),
            "skills": section(entry("b"), entry("c")),
        },
        key_id="1" * 16,
    )
    diff = compare(before, after)
    assert [(c.kind, c.name, c.what) for c in diff.changes] == [("skills", "a", "removed")]
    told = "\n".join(diff.not_compared)
    assert "different keys" in told
    assert "jobs were not compared: the second did not look at them" in told
    assert "skills were compared in part" in told
    assert "files: 1 could not be read whole" in told


def test_a_field_that_comes_or_goes_is_a_change() -> None:
    before = inventory({"jobs": section(entry("x", {"enabled": True}, prompt="p"))})
    after = inventory({"jobs": section(entry("x", {"enabled": 1}, prompt="p", script="s"))})
    (change,) = compare(before, after).changes
    assert [(f.field, f.is_hidden, f.appeared) for f in change.fields] == [
        ("enabled", False, None),
        ("script", True, True),
    ]
    (back,) = compare(after, before).changes
    assert back.fields[1].appeared is False


def test_a_long_diff_is_cut_and_counted() -> None:
    many = section(*(entry(f"p{n:05}", {"version": "1"}) for n in range(CHANGES_MOST + 7)))
    other = section(*(entry(f"p{n:05}", {"version": "2"}) for n in range(CHANGES_MOST + 7)))
    diff = compare(inventory({"debian": many}), inventory({"debian": other}))
    assert len(diff.changes) == CHANGES_MOST
    assert diff.counts["debian"].changed == CHANGES_MOST + 7
    assert diff.sentences()[-1] == f"{CHANGES_MOST + 7 - 10} more Debian packages changed"
    gone = compare(inventory({"debian": many}), inventory({"debian": section()}))
    assert gone.sentences() == (
        "1,007 Debian packages removed: p00000, p00001, p00002, p00003, p00004 and 1,002 more",
    )


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("equal", set()),
        ("superset", {"added", "rose"}),
        ("may-change", {"added", "removed", "rose", "fell"}),
    ],
)
def test_a_rule_per_kind(rule: Any, allowed: set[str]) -> None:
    base = inventory({"tables": section(entry("t", {"rows": 5}))})
    cases = {
        "added": section(entry("t", {"rows": 5}), entry("u", {"rows": 1})),
        "removed": section(),
        "rose": section(entry("t", {"rows": 6})),
        "fell": section(entry("t", {"rows": 4})),
    }
    for name, found in cases.items():
        diff = compare(base, inventory({"tables": found}))
        assert bool(violations(diff, {"tables": rule})) == (name not in allowed), name


def test_a_rule_for_a_field_wins() -> None:
    before = inventory({"memory": section(entry("MEMORY.md", {"size_bytes": 9}, content="a"))})
    after = inventory({"memory": section(entry("MEMORY.md", {"size_bytes": 7}, content="b"))})
    assert violations(compare(before, after), DEFAULT_RULES) == ()
    gone = inventory({"memory": section()})
    (found,) = violations(compare(before, gone), DEFAULT_RULES)
    assert (found.rule, found.change.name) == ("memory: superset", "MEMORY.md")
    (found,) = violations(
        compare(before, after), {"memory": "equal", "memory.content": "may-change"}
    )
    assert [f.field for f in found.change.fields] == ["size_bytes"]
    with pytest.raises(InvalidRequest, match="no kind 'skill'"):
        check_rules({"skill": "equal"})
    with pytest.raises(InvalidRequest, match="no rule 'same'"):
        check_rules({"skills": "same"})


def test_the_diff_as_json_has_no_value_that_is_hidden() -> None:
    before = inventory({"jobs": section(entry("x", prompt="p"))})
    after = inventory({"jobs": section(entry("x", prompt="q"))})
    raw = compare(before, after).to_json()
    assert raw["sentences"] == ["1 job prompt changed: x"]
    assert raw["changes"][0]["fields"] == [{"field": "prompt", "is_hidden": True, "appeared": None}]
    assert digest("q") not in json.dumps(raw)


def test_json_and_back() -> None:
    one = inventory(
        {
            "skills": section(entry("a", {"files": 1, "x": None}, content="x", unknown=("y",))),
            "debian": section(entry("\udcffodd", {"version": "1"}), is_complete=False),
        }
    )
    text = json.dumps(one.to_json())
    assert inventory_from_json(json.loads(text)) == one
    assert not one.is_complete


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), 2),
        (("key_id",), "xyz"),
        (("taken_at",), "2026-01-02T03:04:05"),
        (("taken_at",), 5),
        (("sections",), {"spells": {}}),
        (("sections",), []),
        (("sections", "skills", "entries"), [{"name": "a"}, {"name": "a"}]),
        (("sections", "skills", "entries"), [{"name": "a" * 2000}]),
        (("sections", "skills", "entries"), [{"name": "a", "shown": {"x": 1.5}}]),
        (("sections", "skills", "entries"), [{"name": "a", "shown": {"x": 1 << 70}}]),
        (("sections", "skills", "entries"), [{"name": "a", "shown": {"x": ["y"]}}]),
        (("sections", "skills", "entries"), [{"name": "a", "hidden": {"x": "plain text"}}]),
        (("sections", "skills", "entries"), [{"name": "a", "shown": {"x\n": 1}}]),
        (
            ("sections", "skills", "entries"),
            [{"name": "a", "shown": {f"f{n}": 1 for n in range(99)}}],
        ),
        (("sections", "skills", "entries"), ["a"]),
    ],
)
def test_what_is_no_inventory_is_refused(path: tuple[str, ...], value: object) -> None:
    raw = inventory({"skills": section(entry("a"))}).to_json()
    at: Any = raw
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(DataDamaged, match="not an inventory"):
        inventory_from_json(raw)
