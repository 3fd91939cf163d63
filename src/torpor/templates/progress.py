"""How far mmdebstrap is, read from what it prints.

apt runs twice: for the essential packages and for the rest. Each run says first how many packages it will
install, then one line a package for each of fetching, unpacking and setting up, so the share is counted,
not guessed; only the weight of the two runs against each other is an estimate.
"""

from __future__ import annotations

import re

_COUNT = re.compile(r"\d+ upgraded, (\d+) newly installed")
_PACKAGE = re.compile(r"(Get:|Unpacking |Setting up )(?:\d+ \S+ \S+ \S+ )?(\S+)")
_WEIGHTS = ((0.03, 0.40), (0.40, 0.99))
"""Share of the whole at the begin and end of each of apt's two runs."""


class PackagesProgress:
    """Turns mmdebstrap's lines into a share from 0 to 1, never going back, and a message."""

    def __init__(self) -> None:
        self._runs = 0
        self._total = 1
        self._done = 0
        self.share = 0.0
        self.message = "reading package lists"

    def feed(self, line: str) -> bool:
        """Take a line; return whether share or message changed."""
        before = (self.share, self.message)
        count = _COUNT.match(line)
        if count is not None:
            self._runs += 1
            self._total, self._done = max(1, int(count.group(1))), 0
            self.message = f"fetching {count.group(1)} packages"
        elif self._runs and (found := _PACKAGE.match(line)) is not None:
            self._step(found.group(1).strip(), found.group(2))
        return (self.share, self.message) != before

    def _step(self, kind: str, name: str) -> None:
        self._done += 1
        low, high = _WEIGHTS[min(self._runs, len(_WEIGHTS)) - 1]
        share = low + (high - low) * min(1.0, self._done / (3 * self._total))
        self.share = max(self.share, share)
        verb = {"Get:": "fetching", "Unpacking": "unpacking"}.get(kind, "setting up")
        self.message = f"{verb} {name.partition(':')[0]}"
