"""Finds the change that an id, the beginning of one, or a sandbox means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.ids import is_id
from torpor.cli import completion
from torpor.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from torpor.sdk.sync_changes import Change

ChangeArg = Annotated[
    str,
    typer.Argument(
        metavar="CHANGE|SANDBOX",
        help="Its id, the beginning of it, or the sandbox: then its newest change.",
        autocompletion=completion.sandboxes,
    ),
]


def find_change(text: str) -> Change:
    """Return the change that `text` means; of a sandbox the one that is open, else the newest.

    Raises:
        NotFound: there is none.
        InvalidRequest: it can be several.
    """
    from torpor.sdk.sync_changes import Change

    if is_id(text, "chg"):
        return Change.get(text)
    if text.startswith("chg"):
        found = [change for change in Change.list(limit=1000) if change.id.startswith(text)]
        if len(found) > 1:
            raise InvalidRequest(
                f"{text!r} can be any of {', '.join(sorted(c.id for c in found)[:5])}",
                hint="give more of the id",
            )
        if not found:
            raise NotFound(
                f"no change's id begins with {text!r}", hint="`torpor changes` lists them"
            )
        return found[0]
    from torpor.cli.find import find

    sandbox = find(text)
    changes = sandbox.changes()
    if not changes:
        raise NotFound(
            f"sandbox {sandbox.id} has had no change", hint="`torpor changes` lists them"
        )
    return next((change for change in changes if change.info.is_open), changes[0])
