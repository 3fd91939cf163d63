"""What no page of the documentation says: places that only one machine has, promises, and what is left to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.style.markdown import ROOT, documents

FORBIDDEN = (
    # folders of a developer's machine; /home/agent is in every sandbox
    re.compile(r"(?<![\w./~-])/(?:root|work|Users|home/(?!agent\b)\w+)/"),
    # addresses on somebody's own network; machines have some of their own
    re.compile(r"\b(?:10\.(?!0\.2\.|212\.0\.0/14)\d+|192\.168)\.\d+\.\d+\b"),
    re.compile(r"\b(?:TODO|FIXME|XXX|TBD)\b|[Ll]orem ipsum"),
    re.compile(
        r"\b(?:blazing|seamless|effortless|revolution|cutting.edge|world.class|game.chang|best.in.class|"
        r"next.gen|supercharge|unleash|robust|leverag|state.of.the.art|battle.tested|enterprise.grade)\w*",
        re.IGNORECASE,
    ),
)


def problems(text: str) -> list[str]:
    """Return the words in `text` that are not wanted, each with its line."""
    return [
        f"line {number}: {found[0]!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in FORBIDDEN
        for found in pattern.finditer(line)
    ]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_has_words_that_are_not_wanted(path: Path) -> None:
    assert not problems(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text",
    ["see /home/me/src/x", "at 192.168.1.4", "TODO: more", "a seamless, robust way", "in /root/x"],
)
def test_words_that_are_not_wanted_are_found(text: str) -> None:
    assert problems(text)


def test_what_every_sandbox_has_may_be_said() -> None:
    assert not problems(
        "/home/agent/x, /workspace/y, 10.0.2.15, ~/jobs/z, 192.0.2.10, 10.212.0.0/14"
    )
