"""`torpor events`: every change of state, as it happens."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from torpor.cli.output import AsJson, as_dict, visible


def events(
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on behind this event; default: from now.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND", help="Only `sandbox`, `snapshot`, `template` or `watch`; several times."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print every change of state as it happens, a line each, until Ctrl-C."""
    from torpor.sdk.events import Events

    for event in Events.follow(after=after, kinds=kind or ()):
        if as_json:
            line = json.dumps({**as_dict(event), "at": event.at.isoformat()})
        elif event.kind == "gap":
            line = f"{event.at.isoformat()}  events were missed"
        else:
            more = " ".join(f"{k}={v}" for k, v in event.details.items() if v is not None)
            line = (
                f"{event.at.isoformat()}  {event.kind:<8}  {event.object_id}  {event.state}  {more}"
            )
        print(visible(line))
        sys.stdout.flush()
