"""Which memory a command means: the daemon's, or a file without a daemon; and whose in it."""

from __future__ import annotations

import contextlib
import getpass
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from torpor.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from torpor.memory import Memory, Space
    from torpor.sdk.sync_memory import DaemonMemory

Agent = Annotated[
    str | None,
    typer.Option("-a", "--agent", help="Whose memory; needed when there are several."),
]
Sandbox = Annotated[
    str | None, typer.Option("-s", "--sandbox", help="The memory of this sandbox's agent.")
]
File = Annotated[
    Path | None,
    typer.Option(
        "-f", "--file", help="A memory file (or postgresql:// address), without a daemon."
    ),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept in the history.")]
KnownAt = Annotated[
    str | None,
    typer.Option(
        "--known-at", metavar="TX|TIME", help="What was known then: a transaction or a time."
    ),
]
ValidAt = Annotated[
    str | None, typer.Option("--valid-at", metavar="TIME", help="What was true then.")
]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="STATUS", help="Also what does not hold: superseded, …"),
]


@contextlib.contextmanager
def whole_memory(file: Path | None, *, new: bool = False) -> Iterator[Memory | DaemonMemory]:
    """Enter with a memory: that in `file`, which is made if it is missing and `new`, or the daemon's.

    Raises:
        NotFound: there is no such file, and the command would find nothing in a new one.
    """
    if file is None:
        from torpor.sdk.sync_memory import DaemonMemory

        yield DaemonMemory()
        return
    from torpor.memory import Memory

    where = _address(file)
    if isinstance(where, Path) and not new and not where.exists():
        raise NotFound(f"{where} does not exist", hint="record and remember make it")
    with Memory.open(where, embedder=_embedder()) as memory:
        yield memory


def _address(file: Path) -> str | Path:
    """Return a PostgreSQL address as it was given: as a path it lost a slash."""
    text = str(file)
    for scheme in ("postgresql:", "postgres:"):
        if text.startswith(f"{scheme}/"):
            return f"{scheme}//{text.removeprefix(scheme).lstrip('/')}"
    return file


def _embedder() -> Any:
    import os

    from torpor.memory.service import choose_embedder

    return choose_embedder(os.environ.get("TORPOR_MEMORY_EMBEDDER", "auto"))


@contextlib.contextmanager
def space_of(
    file: Path | None, agent: str | None, sandbox: str | None, *, new: bool = False
) -> Iterator[Space]:
    """Enter with the space that a command means; the daemon's has the same methods as an embedded one.

    Args:
        new: the command writes, so the space of an agent who is named may be made.

    Raises:
        InvalidRequest: the options contradict each other, or there are several agents and none is named.
        NotFound: nobody has a memory there, or not the one who is named.
    """
    if sandbox is not None:
        if file is not None or agent is not None:
            raise InvalidRequest("--sandbox says whose memory it is; leave --agent and --file out")
        from torpor.cli.find import find

        yield cast("Space", find(sandbox).memory)
        return
    with whole_memory(file, new=new) as memory:
        known = memory.agents()
        name = agent or _only(known)
        if name not in known and not new:
            raise NotFound(
                f"there is no memory of agent {name!r}", hint=f"there is: {', '.join(known) or '-'}"
            )
        yield cast("Space", memory.space(name, actor=f"human:{_user()}"))


def _only(known: tuple[str, ...]) -> str:
    if len(known) == 1:
        return known[0]
    if not known:
        raise NotFound("nobody has a memory there yet", hint="name an agent: --agent NAME")
    raise InvalidRequest(
        f"{len(known)} agents have a memory there", hint=f"--agent {'|'.join(known[:8])}"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "unknown"


def moment(text: str | None, option: str) -> datetime | None:
    """Return the time that an option names; without a zone it is UTC.

    Raises:
        InvalidRequest: it is no ISO 8601 time.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidRequest(f"{option} {text!r} is no time", hint="2026-01-31T12:00Z") from exc
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def known_at(text: str | None) -> int | datetime | None:
    """Return the transaction or time of `--known-at`."""
    if text is not None and text.isdecimal():
        return int(text)
    return moment(text, "--known-at")


def given_text(text: str) -> str:
    """Return `text`, or what is on stdin if it is `-`."""
    return sys.stdin.read() if text == "-" else text


def given_value(text: str) -> Any:
    """Return the value that an argument means: JSON if it is a number, true, false, null, list or object."""
    import json

    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if not isinstance(found, str) else text
