"""The changelog has the form of Keep a Changelog, so that people and programs can read it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from tests.style.markdown import ROOT

_KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
_RELEASE = re.compile(r"## \[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d{2}-\d{2})( \[YANKED\])?")


@dataclass
class Release:
    """One `##` of the changelog."""

    heading: str
    kinds: dict[str, list[str]] = field(default_factory=dict)


def releases(text: str) -> list[Release]:
    """Return the changelog's releases, or raise `ValueError` that says what is wrong."""
    lines = text.splitlines()
    if not lines or lines[0] != "# Changelog":
        raise ValueError("it does not begin with `# Changelog`")
    found: list[Release] = []
    entries: list[str] | None = None
    for number, line in enumerate(lines[1:], 2):
        if line.startswith("## "):
            found.append(Release(line))
            entries = None
        elif line.startswith("### "):
            entries = _begun(found, line[4:], number)
        elif found and line:
            _take(entries, line, number)
    for release in found:
        _check_entries(release)
    return found


def _check_entries(release: Release) -> None:
    for kind, items in release.kinds.items():
        if not items:
            raise ValueError(f"{release.heading}: {kind} is empty")
        for item in items:
            if not item.endswith("."):
                raise ValueError(f"{release.heading}: {item[:60]!r} does not end with a full stop")


def _begun(found: list[Release], kind: str, number: int) -> list[str]:
    if kind not in _KINDS:
        raise ValueError(f"line {number}: {kind!r} is none of {', '.join(_KINDS)}")
    if not found or kind in found[-1].kinds:
        raise ValueError(f"line {number}: {kind} stands in no release, or twice in one")
    return found[-1].kinds.setdefault(kind, [])


def _take(entries: list[str] | None, line: str, number: int) -> None:
    if line.startswith("- ") and entries is not None:
        entries.append(line[2:])
    elif line.startswith("  ") and entries:
        entries[-1] += " " + line.strip()
    else:
        raise ValueError(f"line {number}: {line[:60]!r} is no entry")


def test_the_changelog_has_its_form() -> None:
    found = releases((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert found[0].heading == "## [Unreleased]"
    matches = [_RELEASE.fullmatch(release.heading) for release in found[1:]]
    assert all(matches), [release.heading for release in found]
    versions = [tuple(int(part) for part in m.groups()[:3]) for m in matches if m]
    dates = [m[4] for m in matches if m]
    assert all(newer > older for newer, older in pairwise(versions))
    assert all(newer >= older for newer, older in pairwise(dates))
    assert all(release.kinds for release in found[1:]), "a release changed something"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# Changes\n", "does not begin"),
        ("# Changelog\n## [Unreleased]\n### Improved\n- All.\n", "'Improved' is none of"),
        ("# Changelog\n## [Unreleased]\n### Added\n- One.\n### Added\n- Two.\n", "twice"),
        ("# Changelog\n## [Unreleased]\n### Added\n", "is empty"),
        ("# Changelog\n## [Unreleased]\n### Added\n- No stop\n", "full stop"),
        ("# Changelog\n## [Unreleased]\n- Loose.\n", "is no entry"),
    ],
)
def test_a_wrong_changelog_is_found(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        releases(text)
