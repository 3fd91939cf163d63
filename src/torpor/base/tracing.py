"""Spans of OpenTelemetry, where somebody wants them; nothing at all where nobody does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

_tracer: Any = None
_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()

Attribute = str | int | float | bool | None


def enable(tracer: Any) -> None:
    """Let spans go to an OpenTelemetry tracer; None: to nobody."""
    global _tracer
    _tracer = tracer


def is_enabled() -> bool:
    """Return whether anybody takes spans."""
    return _tracer is not None


def span(
    name: str, *, parent: Mapping[str, str] | None = None, **attributes: Attribute
) -> AbstractContextManager[Any]:
    """Enter a span around what is done in the context; a failure in it is noted in the span.

    Args:
        name: what is done, such as `engine.create`.
        parent: headers of a request that may name the span it belongs to.
        attributes: what is good to know; those that are None are left out.
    """
    return _NOTHING if _tracer is None else _entered(name, parent, attributes)


@contextlib.contextmanager
def _entered(
    name: str, parent: Mapping[str, str] | None, attributes: Mapping[str, Attribute]
) -> Iterator[Any]:
    from opentelemetry import propagate
    from opentelemetry.trace import SpanKind

    known = {key: value for key, value in attributes.items() if value is not None}
    context = None if parent is None else propagate.extract(parent)
    kind = SpanKind.INTERNAL if parent is None else SpanKind.SERVER
    with _tracer.start_as_current_span(name, context=context, kind=kind, attributes=known) as found:
        yield found
