"""A full disk, said in our words: whatever runs out of space becomes `InsufficientResources`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from torpor.errors import InsufficientResources

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(exc: BaseException | None) -> bool:
    """Return whether `exc`, or what it was raised from, says that the disk (or the user's share of it) is full."""
    while exc is not None:
        if isinstance(exc, InsufficientResources) or (
            isinstance(exc, OSError) and exc.errno in FULL
        ):
            return True
        exc = exc.__cause__
    return False


@contextlib.contextmanager
def full_disk_told(what: str) -> Iterator[None]:
    """Raise `InsufficientResources` instead of the system's own error when the disk is full while `what` is made."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in FULL:
            raise
        raise InsufficientResources(
            f"the disk is full: {what} could not be written",
            hint="free disk space: delete snapshots or sandboxes that are not needed (torpor layers)",
            path=exc.filename,
        ) from exc
