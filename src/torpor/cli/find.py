"""Finds the sandbox that an id, the beginning of one, or a name means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.ids import is_id
from torpor.cli import completion
from torpor.errors import Conflict, InvalidRequest, NotFound

if TYPE_CHECKING:
    from torpor.sdk.sync_sandbox import Sandbox

SandboxArg = Annotated[
    str,
    typer.Argument(
        metavar="SANDBOX",
        help="Its id, the beginning of it, or its name.",
        autocompletion=completion.sandboxes,
    ),
]


def find(text: str) -> Sandbox:
    """Return the sandbox whose id is `text` or begins with it, with or without `sbx_`, or whose name it is.

    A name is what the metadata `name` says (`torpor create --name`); it wins over the beginning of an id.

    Raises:
        NotFound: there is none.
        InvalidRequest: there are several.
    """
    from torpor.sdk.sync_sandbox import Sandbox

    if is_id(text, "sbx"):
        return Sandbox.handle(text)
    begins = (text, f"sbx_{text}")
    there = list(Sandbox.list(page_size=1000))
    found = [s for s in there if text and s.info.metadata.get("name") == text]
    found = found or [s for s in there if text and s.id.startswith(begins)]
    if not found:
        raise NotFound(
            f"no sandbox has the name {text!r}, or an id that begins so",
            hint="`torpor ls` lists them",
        )
    if len(found) > 1:
        raise InvalidRequest(
            f"{text!r} can be any of {', '.join(sorted(s.id for s in found)[:5])}",
            hint="they have the same name; give an id"
            if found[0].info.metadata.get("name") == text
            else "give more of the id",
        )
    return found[0]


def check_free(name: str) -> None:
    """Refuse a name that a sandbox has already: commands could not tell the two apart.

    Raises:
        Conflict: one has it.
    """
    from torpor.sdk.sync_sandbox import Sandbox

    for other in Sandbox.list(metadata={"name": name}, page_size=1):
        raise Conflict(
            f"sandbox {other.id} has the name {name!r} already",
            hint=f"choose another, or delete that one: torpor rm {name}",
            sandbox_id=other.id,
        )
