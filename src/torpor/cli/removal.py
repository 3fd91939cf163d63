"""Removing several things: a failure of one does not keep the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import typer

from torpor.base.units import format_bytes
from torpor.cli.app import tell
from torpor.cli.output import print_json
from torpor.errors import TorporError, error_to_wire


def remove_each(removals: Mapping[str, Callable[[], int | None]], *, as_json: bool) -> None:
    """Call each of `removals` and print its name, with the bytes that it returned as freed, if any.

    Raises:
        typer.Exit: with the exit code of the first that failed; each failure was told.
    """
    freed: dict[str, int | None] = {}
    failed: dict[str, TorporError] = {}
    for name, remove in removals.items():
        try:
            freed[name] = remove()
        except TorporError as error:
            failed[name] = error
            tell(error)
            continue
        if not as_json:
            size = freed[name]
            print(name if size is None else f"{name}  {format_bytes(size)} freed")
    if as_json:
        sizes = [size for size in freed.values() if size is not None]
        print_json(
            {"deleted": list(freed)}
            | ({"freed_bytes": sum(sizes)} if sizes else {})
            | ({"errors": {name: error_to_wire(e) for name, e in failed.items()}} if failed else {})
        )
    if failed:
        raise typer.Exit(next(iter(failed.values())).exit_code)
