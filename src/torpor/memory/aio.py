"""The asynchronous face: every call of a `Space` in a thread, so that no loop waits for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from typing_extensions import override

from torpor.memory.space import Space

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(method: Callable[P, T]) -> Callable[P, Any]:
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, *args, **kwargs)

    call.__name__ = getattr(method, "__name__", "call")
    call.__doc__ = method.__doc__
    return call


class AsyncSpace:
    """A space whose methods are awaited; names, arguments and results are those of `Space`.

    A call that was begun goes on when its task is cancelled: a transaction is done or not, never half.
    """

    def __init__(self, space: Space) -> None:
        self._space = space

    @property
    def space(self) -> Space:
        """The synchronous space beneath."""
        return self._space

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(type(self._space), name, None)
        if isinstance(found, property):
            return _in_thread(lambda: getattr(self._space, name))
        return _in_thread(getattr(self._space, name))

    @override
    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(n for n in dir(self._space) if not n.startswith("_"))})
