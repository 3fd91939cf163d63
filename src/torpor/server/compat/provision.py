"""`ProvisionDesk`: databases that are being made for clients who were answered already, and why some could not be."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from torpor.base.aio import Supervisor
from torpor.errors import RateLimited, TorporError
from torpor.model_databases import DatabaseStep, Progress

log = logging.getLogger(__name__)

OPEN_MOST = 8
FAILED_MOST = 200
"""Failures that are remembered, for whoever asks how it went."""


@dataclass(frozen=True, slots=True)
class Provision:
    """One database that is not there yet."""

    name: str
    error: str | None = None
    """Why it will not be; None: it is being made."""


class ProvisionDesk:
    """Carries on what began in a request."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Provision] = OrderedDict()
        self._tasks = Supervisor(lambda name, error: log.error("%s", name, exc_info=error))

    async def aclose(self) -> None:
        """Break off what is under way; the next daemon removes what it left."""
        await self._tasks.aclose(within_s=60)

    def find(self, workspace: str, name: str) -> Provision | None:
        """Return what is being made or failed under that name; None: it is there, or never was."""
        return self._known.get((workspace, name))

    def forget(self, workspace: str, name: str) -> None:
        """Forget a failure."""
        self._known.pop((workspace, name), None)

    def begin(
        self, workspace: str, name: str, make: Callable[[Progress], Coroutine[Any, Any, object]]
    ) -> None:
        """Begin to make a database. Raises `RateLimited` when too many are being made."""
        if sum(found.error is None for found in self._known.values()) >= OPEN_MOST:
            raise RateLimited(
                f"{OPEN_MOST} databases are being made",
                hint="wait until one of them is there",
                retry_after_seconds=10,
            )
        key = (workspace, name)
        self._known[key] = Provision(name)
        self._tasks.launch(self._run(key, make), name=f"database {name}")

    async def _run(
        self, key: tuple[str, str], make: Callable[[Progress], Coroutine[Any, Any, object]]
    ) -> None:
        def tell(step: DatabaseStep) -> None:
            log.info("database %s: %s", key[1], step.message)

        try:
            await make(tell)
        except TorporError as error:
            self._fail(key, f"{error.message} ({error.hint})" if error.hint else error.message)
        except Exception:
            log.exception("database %s could not be made", key[1])
            self._fail(key, "the daemon failed; its log has the details")
        else:
            self._known.pop(key, None)

    def _fail(self, key: tuple[str, str], why: str) -> None:
        self._known[key] = replace(self._known[key], error=why)
        self._known.move_to_end(key)
        failed = [known for known, found in self._known.items() if found.error is not None]
        for old in failed[:-FAILED_MOST]:
            del self._known[old]
