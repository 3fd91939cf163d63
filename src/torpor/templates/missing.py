"""What is said for the name of a template that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from torpor.errors import NotFound
from torpor.templates.recipe import shipped_names

_SHOWN = 10


def no_template(name: str, built: Collection[str]) -> NotFound:
    """Return the error for a template that does not exist: how to build it, or which there are instead."""
    shipped = shipped_names()
    if name in shipped:
        hint = f"build it: torpor template build {name}"
    elif near := difflib.get_close_matches(name, sorted({*built, *shipped}), n=1):
        hint = f"did you mean {near[0]!r}?"
        if near[0] not in built:
            hint += f" build it: torpor template build {near[0]}"
    else:
        hint = f"{_listed('built are', built)}; {_listed('to be had with torpor template build', shipped)}"
    return NotFound(f"there is no template {name!r}", hint=hint, template=name)


def _listed(what: str, names: Collection[str]) -> str:
    if not names:
        return f"{what}: none"
    more = len(names) - _SHOWN
    shown = ", ".join(sorted(names)[:_SHOWN])
    return f"{what}: {shown}{f' and {more} more' if more > 0 else ''}"
