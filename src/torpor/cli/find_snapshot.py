"""Finds the snapshot that an id, the beginning of one, or `SANDBOX@LABEL` means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.ids import is_id
from torpor.cli import completion
from torpor.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from torpor.sdk.sync_snapshots import Snapshot

SnapshotArg = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="Its id, the beginning of it, or SANDBOX@LABEL.",
        autocompletion=completion.snapshots,
    ),
]


def find_snapshot(text: str) -> Snapshot:
    """Return the snapshot that `text` means.

    Raises:
        NotFound: there is none.
        InvalidRequest: it can be several.
    """
    from torpor.sdk.sync_snapshots import Snapshot

    if is_id(text, "snap"):
        return Snapshot.handle(text)
    found = matching(text)
    if not found:
        raise NotFound(
            f"there is no snapshot {text!r}",
            hint="`torpor snapshots` lists them; one with a label is SANDBOX@LABEL",
        )
    if len(found) > 1:
        raise InvalidRequest(
            f"{text!r} can be any of {', '.join(sorted(s.id for s in found)[:5])}",
            hint="give more of the id",
        )
    return found[0]


def matching(text: str) -> list[Snapshot]:
    """Return the snapshots that `text` can mean, newest first."""
    from torpor.sdk.sync_snapshots import Snapshot

    sandbox, at, label = text.partition("@")
    if not at:
        begins = (text, f"snap_{text}")
        return [s for s in Snapshot.list() if text and s.id.startswith(begins)]
    begins = (sandbox, f"sbx_{sandbox}")
    labelled = [s for s in Snapshot.list() if sandbox and s.label == label]
    found = [s for s in labelled if (s.sandbox_id or "").startswith(begins)]
    if found or not labelled:
        return found
    from torpor.sdk.sync_sandbox import Sandbox

    named = {s.id for s in Sandbox.list(metadata={"name": sandbox}, page_size=1000)}
    return [s for s in labelled if s.sandbox_id in named]


def find_source(text: str) -> str:
    """Return the id of the sandbox or snapshot that `text` means.

    Raises:
        NotFound: there is none.
        InvalidRequest: it can be several.
    """
    from torpor.cli.find import find

    if "@" in text or text.startswith("snap"):
        return find_snapshot(text).id
    try:
        sandbox = find(text)
    except NotFound:
        if text.startswith("sbx_"):
            raise
        found = matching(text)
        if not found:
            raise NotFound(
                f"no sandbox has the name {text!r}, and no sandbox's and no snapshot's id begins so",
                hint="`torpor ls` and `torpor snapshots` list them",
            ) from None
        return find_snapshot(text).id
    if is_id(text, "sbx") or sandbox.info.metadata.get("name") == text:
        return sandbox.id  # a name wins over the beginning of an id
    if not text.startswith("sbx") and matching(text):
        raise InvalidRequest(
            f"{text!r} can be a sandbox or a snapshot", hint="begin it with sbx_ or snap_"
        )
    return sandbox.id
