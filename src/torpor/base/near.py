"""What may have been meant by a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the nearest of the names that are known; None if none is near."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {near[0]!r}?" if near else None
