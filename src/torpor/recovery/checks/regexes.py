"""Searches with regular expressions from a checks file or a profile in text from a machine.

Python's `re` holds the interpreter while it searches, and some patterns take for ever on some texts. So each
search with a pattern that repeats anything is done by a process of its own with a limit.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

from torpor.base import proc
from torpor.errors import OperationTimeout
from torpor.recovery.checks.facts import Unclear

SEARCH_LIMIT_S = 5.0
_REPEATS = frozenset("*+?{")
_BEGIN = (
    "import json,re,sys\n"
    "pattern,texts=json.loads(sys.stdin.buffer.read())\n"
    "found=re.compile(pattern).search\n"
)
_SEARCH = _BEGIN + "sys.exit(0 if any(found(t) for t in texts) else 10)\n"
_WHICH = _BEGIN + "print(json.dumps([found(t) is not None for t in texts]))\n"


async def search(pattern: str, texts: Sequence[str]) -> bool:
    """Return whether `pattern` is found in one of `texts`.

    Raises:
        Unclear: the search took longer than `SEARCH_LIMIT_S` seconds.
    """
    if not _REPEATS & set(pattern):
        found = re.compile(pattern).search
        return any(found(text) for text in texts)
    done = await _searched(_SEARCH, pattern, texts, (0, 10))
    return done.status == 0


async def which(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Return of each of `texts` whether `pattern` is found in it. Raises as `search`."""
    if not _REPEATS & set(pattern):
        found = re.compile(pattern).search
        return [found(text) is not None for text in texts]
    done = await _searched(_WHICH, pattern, texts, (0,))
    return [said is True for said in json.loads(done.stdout)]


async def _searched(
    program: str, pattern: str, texts: Sequence[str], statuses: tuple[int, ...]
) -> proc.Finished:
    argv = [sys.executable, "-I", "-S", "-c", program]
    given = json.dumps([pattern, list(texts)]).encode("ascii")
    try:
        done = await proc.run(argv, timeout_s=SEARCH_LIMIT_S, stdin=given, check=False)
    except OperationTimeout as exc:
        raise Unclear(
            f"the search for /{pattern[:100]}/ took longer than {SEARCH_LIMIT_S:g} s"
        ) from exc
    if done.status not in statuses:
        raise Unclear(f"the search for /{pattern[:100]}/ ended with status {done.status}")
    return done
