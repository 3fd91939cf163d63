"""Tables, sizes and ages for people; JSON for programs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

Secret = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="As -e, with the value that NAME has in this command's environment."
    ),
]

_PIPE_WIDTH = 1000
"""Columns of a table that goes to a file or pipe: nothing is cut."""


def print_json(value: object) -> None:
    """Print `value`, which may hold dataclasses and times, as JSON."""
    print(json.dumps(value, indent=2, default=_plain))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def visible(text: str, *, keep_lines: bool = False) -> str:
    """Return `text` with control characters spelled out: what a guest says must not steer the terminal."""
    return "".join(
        char
        if char.isprintable() or (keep_lines and char in "\n\t") or "\udc80" <= char <= "\udcff"
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print rows below their columns; `empty` on stderr when there are none."""
    found = [[visible("-" if cell is None else str(cell)) for cell in row] for row in rows]
    if not found:
        print(empty, file=sys.stderr)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in found:
        table.add_row(*[Text(cell) for cell in row])
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False).print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values below each other."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        text = visible("-" if value is None else str(value), keep_lines=True)
        print(f"{name:<{width}}  {text.replace(chr(10), chr(10) + ' ' * (width + 2))}")


def age(moment: datetime) -> str:
    """Return how long ago a moment is, in one unit: `12 s`, `5 min`, `3 h`, `4 d`."""
    return span((datetime.now(UTC) - moment).total_seconds())


def left(moment: datetime | None) -> str:
    """Return how long it is until a moment, in one unit; `never` for None."""
    if moment is None:
        return "never"
    seconds = (moment - datetime.now(UTC)).total_seconds()
    return f"in {span(seconds)}" if seconds > 0 else "due"


def span(seconds: float) -> str:
    """Return a duration in the unit that suits it, rounded to the nearest."""
    for unit, size, most in (("s", 1, 60), ("min", 60, 60), ("h", 3600, 24)):
        whole = max(0, round(seconds / size))
        if whole < most:
            return f"{whole} {unit}"
    return f"{round(seconds / 86400)} d"


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return `KEY=VALUE` texts as a mapping.

    Raises:
        InvalidRequest: one has no `=` or no key.
    """
    from torpor.errors import InvalidRequest

    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidRequest(f"{option} {text!r} is not KEY=VALUE")
        found[key] = value
    return found


def stderr_is_terminal() -> bool:
    """Return whether progress can be shown."""
    return sys.stderr.isatty()


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show on a terminal, while it lasts, what takes a while and tells no steps."""
    if not stderr_is_terminal():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(visible(text)), spinner="dots"):
        yield


def as_dict(value: Any) -> dict[str, object]:
    """Return a dataclass as a mapping, one level deep."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def secrets_of(names: Sequence[str]) -> dict[str, str]:
    """Return secrets from the environment: on the command line every user of the host could read them.

    Raises:
        InvalidRequest: there is no such variable.
    """
    from torpor.errors import InvalidRequest

    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InvalidRequest(
            f"--secret {missing[0]}: there is no such variable in the environment",
            hint=f"{missing[0]}=… torpor … --secret {missing[0]}",
        )
    return {name: os.environ[name] for name in names}
