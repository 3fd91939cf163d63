"""What is said for the name of a volume that is not there."""

from __future__ import annotations

from collections.abc import Iterable

from torpor.base.near import meant
from torpor.errors import NotFound


def no_volume(name: str, there: Iterable[str]) -> NotFound:
    """Return the error for a volume that does not exist; `there`: the names that its asker may see."""
    hint = meant(name, there) or f"make it: torpor volume create {name}"
    return NotFound(
        f"there is no volume {name}", hint=f"{hint}; or list them: torpor volume ls", volume=name
    )
