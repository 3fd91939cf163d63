"""Words of queries and texts: what to search for, how much of it a text has, how long a text is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+", re.UNICODE)

_STOP = """
a about after all also am an and any are as at be been before being but by can could did do does doing for
from had has have having he her here hers him his how i if in into is it its just me more most my no nor
not now of on or other our ours out over own s same she should so some such t than that the their theirs
them then there these they this those to too under until up us very was we were what when where which
while who whom whose why will with would you your yours
"""
STOP_WORDS = frozenset(_STOP.split())

MAX_TERMS = 32
"""Long OR queries are what makes a text index slow; more words add noise, not recall."""

_SUFFIXES = ("ations", "ation", "ings", "ing", "edly", "ed", "ies", "es", "s", "ly", "er", "e")


def words_of(text: str) -> list[str]:
    """Return the words of a text, folded, in order."""
    return [w.casefold() for w in _WORD.findall(text)]


def terms_of(query: str) -> list[str]:
    """Return the words to search for: no stop words unless there is nothing else, none twice."""
    words = list(dict.fromkeys(words_of(query)))
    content = [w for w in words if w not in STOP_WORDS]
    return (content or words)[:MAX_TERMS]


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return a rough stem, for comparing a query's words with a text's; the index has a better one."""
    if len(word) > 4:
        for suffix in _SUFFIXES:
            if word.endswith(suffix) and len(word) - len(suffix) >= 3:
                return word[: -len(suffix)]
    return word


_LONG_CHARS = 16_384
"""In a longer text a word's stem is looked for as letters: cutting a million of them into words takes too long."""


def stems_of(terms: Iterable[str]) -> frozenset[str]:
    """Return the stems of words, for `covers`."""
    return frozenset(map(stem, terms))


def covers(text: str, stems: frozenset[str], part: float) -> bool:
    """Return whether at least that part of the stems, which are not none, is in a text."""
    need = part * len(stems)
    if len(text) > _LONG_CHARS:
        folded = text.casefold()
        return sum(s in folded for s in stems) >= need
    found: set[str] = set()
    for match in _WORD.finditer(text):
        word = stem(match[0].casefold())
        if word in stems:
            found.add(word)
            if len(found) >= need:
                return True
    return False


def tokens_of(text: str) -> int:
    """Return about how many tokens a model would make of a text: four bytes each, rounded up."""
    return (len(text.encode("utf-8", "replace")) + 3) // 4


def excerpt(text: str, terms: Iterable[str], limit_chars: int) -> str:
    """Return a long text cut to the part around the first word that was asked for."""
    if len(text) <= limit_chars:
        return text
    lowered = text.casefold()
    places = [at for at in (lowered.find(t) for t in terms) if at >= 0]
    start = max(0, min(places, default=0) - limit_chars // 4)
    part = text[start : start + limit_chars]
    return f"{'…' if start else ''}{part}{'…' if start + limit_chars < len(text) else ''}"


class Says:
    """Tells whether a text has a name in it as a word, however its letters and spaces are written."""

    def __init__(self, name: str) -> None:
        words = r"\s+".join(map(re.escape, _plain(name).split() or [name]))
        self._pattern = re.compile(rf"(?<!\w){words}(?!\w)")

    def __call__(self, text: str) -> bool:
        """Return whether the name is in `text`."""
        return self._pattern.search(_plain(text)) is not None


def _plain(text: str) -> str:
    """Return text without case, and with one code for each letter however it was put together."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
