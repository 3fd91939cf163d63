"""All verbs by name, and how one is read from JSON and its answer written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from torpor.base.plain import to_plain
from torpor.errors import InvalidRequest, NotFound
from torpor.memory.verbs.base import Items, Text, Verb
from torpor.memory.verbs.filing import FILING
from torpor.memory.verbs.moving import MOVING
from torpor.memory.verbs.reading import READING
from torpor.memory.verbs.writing import WRITING

__all__ = ["VERBS", "Items", "Text", "Verb", "answered", "parse"]

VERBS: Mapping[str, type[Verb]] = {
    verb.name: verb for verb in (*WRITING, *READING, *MOVING, *FILING)
}
"""Every call of a space, in the order of the reference."""


def parse(name: str, params: Mapping[str, Any]) -> Verb:
    """Return the call that `name` and `params` describe.

    Raises:
        NotFound: there is no such verb.
        InvalidRequest: the parameters are not its own; values are not repeated, they may be secrets.
    """
    found = VERBS.get(name)
    if found is None:
        raise NotFound(f"memory has no verb {name[:100]!r}", hint=f"there are: {', '.join(VERBS)}")
    try:
        return found.model_validate(params)
    except ValidationError as exc:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in exc.errors(include_url=False, include_input=False)
        ]
        raise InvalidRequest(f"{name}: {'; '.join(faults[:5])}"[:2000]) from None


def answered(result: object) -> Any:
    """Return what `Verb.run` returned as JSON has it."""
    if isinstance(result, str):
        return {"text": result}
    if isinstance(result, list):
        return {"items": to_plain(result)}
    return to_plain(result)
