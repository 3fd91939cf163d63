"""The reference of checks files: its examples are read, and it names every key that is taken."""

from __future__ import annotations

import re

import pytest

from tests.style.markdown import ROOT, Block, blocks
from torpor.model_inventory import KINDS as INVENTORY_KINDS
from torpor.model_inventory_rules import RULES
from torpor.recovery.checks import parse_checks
from torpor.recovery.checks.kinds import COMMON, FILETYPES, KINDS, TIMINGS
from torpor.recovery.checks.matcher_file import _KNOWN

PAGE = ROOT / "docs/reference/checks.md"
TEXT = PAGE.read_text(encoding="utf-8")
PAGES = [PAGE, *sorted((ROOT / "docs/how-to").glob("check*.md"))]
EXAMPLES = [block for path in PAGES for block in blocks(path) if block.language == "yaml"]


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.place)
def test_every_example_is_read(block: Block) -> None:
    assert parse_checks(block.text, source=block.place).checks


def test_every_key_is_described() -> None:
    named = set(re.findall(r"`([\w-]+)`", TEXT))
    keys = {
        *COMMON,
        *TIMINGS,
        *FILETYPES,
        *RULES,
        *INVENTORY_KINDS,
        *_KNOWN,
        *KINDS,
        "required",
        "wanted",
        "defaults",
        "folders",
    }
    for kind in KINDS.values():
        keys |= {*kind.attributes, *kind.texts, *kind.flags, *kind.lists, *kind.special}
        keys |= {kind.target} if kind.target else set()
    assert keys <= named, sorted(keys - named)


def test_every_kind_has_an_example() -> None:
    shown = {
        check.kind for block in EXAMPLES for check in parse_checks(block.text, source="x").checks
    }
    assert shown == set(KINDS)
