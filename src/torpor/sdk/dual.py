"""Methods that are called on the class with an id, or on an instance without one.

Sandbox.delete("sbx_…")
sandbox.delete()
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from typing_extensions import override

P = ParamSpec("P")
R = TypeVar("R")


class _HasHandle(Protocol):
    @classmethod
    def handle(cls, sandbox_id: str) -> Any:
        """Return an instance for an id, without asking the daemon."""
        ...


S = TypeVar("S", bound=_HasHandle)


class dual(Generic[S, P, R]):
    """Decorator: the method also works on the class, whose `handle(id)` makes the instance."""

    def __init__(self, method: Callable[Concatenate[S, P], R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__
        self.__wrapped__ = method  # for inspect.signature and help

    @overload
    def __get__(self, instance: None, owner: type[S]) -> Callable[Concatenate[str, P], R]: ...
    @overload
    def __get__(self, instance: S, owner: type[S]) -> Callable[P, R]: ...
    def __get__(self, instance: S | None, owner: type[S]) -> Callable[..., R]:
        method = self._method
        if instance is not None:
            return functools.partial(method, instance)

        @functools.wraps(method)
        def on_class(sandbox_id: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return method(owner.handle(sandbox_id), *args, **kwargs)

        return on_class


Own = TypeVar("Own")


class dual_self(dual[Any, P, Any]):
    """`dual` for a method that returns its own object."""

    if TYPE_CHECKING:

        @override
        @overload
        def __get__(
            self, instance: None, owner: type[Own]
        ) -> Callable[Concatenate[str, P], Own]: ...
        @overload
        def __get__(self, instance: Own, owner: type[Own]) -> Callable[P, Own]: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...


class dual_async_self(dual[Any, P, Any]):
    """`dual` for an asynchronous method that returns its own object."""

    if TYPE_CHECKING:

        @override
        @overload
        def __get__(
            self, instance: None, owner: type[Own]
        ) -> Callable[Concatenate[str, P], Coroutine[Any, Any, Own]]: ...
        @overload
        def __get__(
            self, instance: Own, owner: type[Own]
        ) -> Callable[P, Coroutine[Any, Any, Own]]: ...
        def __get__(self, instance: Any, owner: Any) -> Any: ...
