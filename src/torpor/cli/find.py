"""Finds the sandbox that an id, or the beginning of one, means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.ids import is_id
from torpor.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from torpor.sdk.sync_sandbox import Sandbox

SandboxArg = Annotated[
    str, typer.Argument(metavar="SANDBOX", help="Its id, or the beginning of it.")
]


def find(text: str) -> Sandbox:
    """Return the sandbox whose id is `text` or begins with it, with or without `sbx_`.

    Raises:
        NotFound: there is none.
        InvalidRequest: there are several.
    """
    from torpor.sdk.sync_sandbox import Sandbox

    if is_id(text, "sbx"):
        return Sandbox.handle(text)
    begins = (text, f"sbx_{text}")
    found = [sandbox for sandbox in Sandbox.list(page_size=1000) if sandbox.id.startswith(begins)]
    if not text or not found:
        raise NotFound(f"no sandbox's id begins with {text!r}", hint="`torpor ls` lists them")
    if len(found) > 1:
        raise InvalidRequest(
            f"{text!r} can be any of {', '.join(sorted(s.id for s in found)[:5])}",
            hint="give more of the id",
        )
    return found[0]
