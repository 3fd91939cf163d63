"""What tests need to know of a Markdown file: its fenced blocks, its links and its headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"(?P<ticks>`{3,})(?P<language>[\w+-]*)\s*")
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+) -->")
_LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?\)")
_HEADING = re.compile(r"#{1,6} +(.+?)\s*#*")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    path: Path
    line: int
    """Where its content begins, counted from 1."""
    language: str
    text: str
    not_run: str | None
    """Why no test runs it: the comment just before it says so."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def documents() -> list[Path]:
    """Return every Markdown file of the repository."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a file, in order."""
    found: list[Block] = []
    reason: str | None = None
    lines = path.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        at += 1
        fence = _FENCE.fullmatch(line)
        if fence is None:
            comment = _NOT_RUN.fullmatch(line)
            reason = comment["reason"] if comment else reason if not line else None
            continue
        begin = at
        while at < len(lines) and lines[at].strip() != fence["ticks"]:
            at += 1
        assert at < len(lines), f"{path}:{begin}: this block has no end"
        text = "\n".join(lines[begin:at]) + "\n"
        found.append(Block(path, begin + 1, fence["language"], text, reason))
        reason = None
        at += 1
    return found


def links(path: Path) -> list[str]:
    """Return where a file's links point; those in code are none."""
    return _LINK.findall(_prose(path))


def anchors(path: Path) -> set[str]:
    """Return the names that links to headings of a file may have."""
    found: set[str] = set()
    for line in _prose(path).splitlines():
        heading = _HEADING.fullmatch(line)
        if heading is not None:
            words = re.sub(r"[^\w\- ]", "", heading[1].replace("`", "").lower())
            found.add(words.replace(" ", "-"))
    return found


def _prose(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<=`)[^`\n]*(?=`)", "", text)
