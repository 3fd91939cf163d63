"""Finds the drill that an id, or the beginning of one, means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.ids import is_id
from torpor.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from torpor.sdk.sync_drills import Drill

DrillArg = Annotated[str, typer.Argument(metavar="DRILL", help="Its id, or the beginning of it.")]


def find_drill(text: str) -> Drill:
    """Return the drill that `text` means.

    Raises:
        NotFound: there is none.
        InvalidRequest: it can be several.
    """
    from torpor.sdk.sync_drills import Drill

    if is_id(text, "drl"):
        return Drill.get(text)
    begins = (text, f"drl_{text}")
    found = [d.id for d in Drill.list(limit=1000) if text and d.id.startswith(begins)]
    if not found:
        raise NotFound(f"no drill's id begins with {text!r}", hint="`torpor drill ls` lists them")
    if len(found) > 1:
        raise InvalidRequest(
            f"{text!r} can be any of {', '.join(sorted(found)[:5])}", hint="give more of the id"
        )
    return Drill.get(found[0])
