"""Spans around what machines and guests are asked. Put in only where traces are wanted; see `base.tracing`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

from torpor.base.tracing import span
from torpor.guest.port import Guest
from torpor.sandboxes.parts import ConnectGuest
from torpor.vmm.base import Driver


class _Traced:
    """Passes everything on, each coroutine in a span of its own."""

    def __init__(self, inner: Any, room: str, makes: frozenset[str] = frozenset()) -> None:
        self._inner = inner
        self._room = room
        self._makes = makes
        """Calls whose results are traced too."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        async def call(*args: Any, **kwargs: Any) -> Any:
            with span(f"{self._room}.{name}"):
                result = await found(*args, **kwargs)
            return _Traced(result, self._room) if name in self._makes and result else result

        return call


def traced_driver(driver: Driver) -> Driver:
    """Return `driver` with spans, and its machines too."""
    makes = frozenset({"start", "restore", "adopt"})
    return cast(Driver, _Traced(driver, "vmm", makes))


def traced_connect(connect: ConnectGuest) -> ConnectGuest:
    """Return `connect` with a span, and guests whose calls have some."""

    async def connected(
        socket_path: Path, *, port: int | None, epoch: int, timeout_s: float
    ) -> Guest:
        with span("guest.connect"):
            guest = await connect(socket_path, port=port, epoch=epoch, timeout_s=timeout_s)
        return cast(Guest, _Traced(guest, "guest"))

    def call(
        socket_path: Path, *, port: int | None, epoch: int, timeout_s: float
    ) -> Awaitable[Guest]:
        return connected(socket_path, port=port, epoch=epoch, timeout_s=timeout_s)

    return call
