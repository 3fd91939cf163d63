"""The agent's own readers of YAML and JSON5: what they understand is right; the rest they refuse."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor_guest.inventory import blocks, documents, loose
from torpor_guest.inventory.loose import NotUnderstood

_ODD = [
    "yes a: b",
    "- x",
    "'q'",
    "#c",
    "x #y",
    "{a}",
    "[b]",
    ">",
    "0x1f",
    "1_0",
    "1:30",
    "010",
    "~",
    "2024-01-01",
    "*a",
    "&b",
    "!c",
    "%d",
    "@e",
    "`f",
    "? g",
    ": h",
    "a:",
    "'",
    '"',
    "\\n",
    "a''b",
    "...",
    "---",
    "-",
    "=",
    "<<",
    "1e5",
    "1.5",
    ".5",
    "+1",
    ".inf",
    "é",
    "\u2028",
    " lead",
    "trail ",
    "a\nb\n",
    "a\n\n b",
    "\ttab",
]
_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
_LEAVES = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | _TEXTS | st.sampled_from(_ODD)
_WORDS = st.lists(
    st.from_regex(r"[a-z][a-z0-9.,_/-]{0,15}", fullmatch=True), min_size=1, max_size=30
).map(" ".join)
_KEYS = st.from_regex(r"[a-z][a-z_]{0,11}", fullmatch=True)


def _nested(
    leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[str] = _TEXTS
) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=12,
    )


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else json.dumps(key): _with_text_keys(item)
            for key, item in value.items()
        }
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


@settings(deadline=None)
@given(
    _nested(_LEAVES),
    st.sampled_from([False, True, None]),
    st.sampled_from([None, "'", '"', "|", ">"]),
    st.sampled_from([2, 4]),
    st.booleans(),
)
def test_what_is_understood_of_yaml_is_right(
    value: Any, flow: bool | None, style: Any, indent: int, raw: bool
) -> None:
    text = yaml.safe_dump(
        value, default_flow_style=flow, default_style=style, indent=indent, allow_unicode=raw
    )
    try:
        found = blocks.loads(text)
    except NotUnderstood:
        return
    assert repr(found) == repr(_with_text_keys(yaml.safe_load(text)))


@settings(deadline=None)
@given(st.dictionaries(_KEYS, _nested(_WORDS | st.integers() | st.booleans(), _KEYS), min_size=1))
def test_plain_settings_are_understood(value: dict[str, Any]) -> None:
    """Files like those that agents write are never refused, long texts over several lines included."""
    text = yaml.safe_dump(value, default_flow_style=False, sort_keys=False)
    assert blocks.loads(text) == yaml.safe_load(text)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_understood_or_refused(text: str) -> None:
    for how in ("json", "yaml"):
        try:
            documents.read(text, how)
        except NotUnderstood:
            continue


@settings(deadline=None)
@given(_nested(_LEAVES))
def test_json_is_json(value: Any) -> None:
    assert loose.loads(json.dumps(value)) == value
    if isinstance(value, (dict, list)):
        assert loose.flow(json.dumps(value), 0)[0] == value


def test_json5() -> None:
    text = "// c\n{a: 1, 'b': \"x\", /* z */ c: [1, 2,], d: {e: true,}, url: 'http://x#y', f: .5, g: +1}\n"
    assert loose.loads(text) == {
        "a": 1,
        "b": "x",
        "c": [1, 2],
        "d": {"e": True},
        "url": "http://x#y",
        "f": 0.5,
        "g": 1,
    }
