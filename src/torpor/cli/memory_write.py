"""Commands that write to a memory, correct it, and forget."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from torpor.cli import memory_tables as tables
from torpor.cli.memory_read import FactId
from torpor.cli.memory_space import (
    Agent,
    File,
    Reason,
    Sandbox,
    given_text,
    given_value,
    moment,
    space_of,
)
from torpor.cli.output import AsJson, print_json
from torpor.errors import DataDamaged, InvalidRequest

Target = Annotated[str, typer.Argument(metavar="FACT|EPISODE", help="The id of either.")]
Value = Annotated[str, typer.Argument(help="Text, or JSON for what is no text.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept in the history.")]


def record(
    content: Annotated[str, typer.Argument(help="What happened, verbatim; `-` reads stdin.")],
    source: Annotated[
        str,
        typer.Option("--from", help="user, agent, tool, document, human_note, recalled or system."),
    ] = "user",
    session: Annotated[str, typer.Option("--session", help="The conversation it is of.")] = "",
    subject: Annotated[
        list[str] | None, typer.Option("--subject", help="Whom or what it is about.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="When it happened; default: now.")
    ] = None,
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Keep what happened, and print the episode's id."""
    with space_of(file, agent, sandbox, new=True) as space:
        made = space.record(
            given_text(content),
            source,
            occurred_at=moment(at, "--at"),
            session=session,
            subjects=subject or (),
            reason=reason,
        )
    print_json(made) if as_json else print(made.id)


def remember(
    subject: Annotated[str, typer.Argument(help="Whom or what it is about.")],
    attribute: Annotated[str, typer.Argument(help="What about it.")],
    value: Value,
    kind: Annotated[
        str, typer.Option("--kind", help="fact, preference, decision, commitment, instruction, …")
    ] = "fact",
    scope: Annotated[str, typer.Option("--scope", help="world, machine or task.")] = "world",
    many: Annotated[bool, typer.Option("--many", help="It may have many values at once.")] = False,
    authority: Annotated[
        str, typer.Option("--authority", help="On whose word: human_edited, user_said, …")
    ] = "human_edited",
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="It holds from then; default: now."),
    ] = None,
    pinned: Annotated[bool, typer.Option("--pin", help="Let it surface before others.")] = False,
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Claim a fact, and print the id of the fact that now stands for it."""
    with space_of(file, agent, sandbox, new=True) as space:
        made = space.remember(
            subject,
            attribute,
            given_value(value),
            kind=kind,
            scope=scope,
            cardinality="many" if many else "one",
            authority=authority,
            valid_from=moment(since, "--since"),
            pinned=pinned,
            reason=reason,
        )
    print_json(made) if as_json else print(made.id)


def correct(
    fact: FactId,
    value: Value,
    reason: Why,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Say that a fact was wrong from the start, and print the id of the right one."""
    with space_of(file, agent, sandbox) as space:
        made = space.correct(fact, given_value(value), reason)
    print_json(made) if as_json else print(made.id)


def supersede(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The fact that ended.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The fact that took its place.")],
    reason: Why,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Say that the world changed: one fact ended when the other began."""
    with space_of(file, agent, sandbox) as space:
        did = space.supersede(old, new, reason)
    print_json(did) if as_json else tables.done(did)


def retract(
    target: Target,
    reason: Why,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Take a fact or an episode back, with all that rested on it; it can be restored."""
    with space_of(file, agent, sandbox) as space:
        did = space.retract(target, reason)
    print_json(did) if as_json else tables.done(did)


def restore(
    target: Target,
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Undo a retraction, suspension or correction."""
    with space_of(file, agent, sandbox) as space:
        did = space.restore(target, reason)
    print_json(did) if as_json else tables.done(did)


def pin(
    fact: FactId,
    off: Annotated[bool, typer.Option("--off", help="No longer.")] = False,
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Let a fact surface before others."""
    with space_of(file, agent, sandbox) as space:
        did = space.pin(fact, pinned=not off, reason=reason)
    print_json(did) if as_json else tables.done(did)


def expire(
    fact: FactId,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="From then on; default: now.")
    ] = None,
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Let a fact hold no longer."""
    with space_of(file, agent, sandbox) as space:
        did = space.expire(fact, at=moment(at, "--at"), reason=reason)
    print_json(did) if as_json else tables.done(did)


def resolve(
    conflict: Annotated[str, typer.Argument(metavar="CONFLICT", help="Its id.")],
    choice: Annotated[str, typer.Argument(metavar="FACT|both", help="What holds.")],
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Decide a conflict."""
    with space_of(file, agent, sandbox) as space:
        did = space.resolve(conflict, choice, reason)
    print_json(did) if as_json else tables.done(did)


def revert(
    tx: Annotated[int, typer.Argument(metavar="TX", help="A transaction's number.")],
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Undo one transaction; what was changed again since is left alone, and said."""
    with space_of(file, agent, sandbox) as space:
        did = space.revert(tx, reason)
    print_json(did) if as_json else tables.done(did)


def consolidate(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would do, and write nothing.")
    ] = False,
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Make facts, by rule, from what was recorded since the last time."""
    with space_of(file, agent, sandbox) as space:
        found = space.consolidate(dry_run=dry_run, reason=reason)
    print_json(found) if as_json else tables.plan(found)


def erase(
    fact: Annotated[str | None, typer.Option("--fact", help="A fact, by id.")] = None,
    episode: Annotated[str | None, typer.Option("--episode", help="An episode, by id.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="A conversation.")] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="All about a name, and every text that has it.")
    ] = None,
    exports: Annotated[
        list[Path] | None,
        typer.Option(
            "--export", help="Also look into this export; it is not changed. With --file."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and erase nothing.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Erase for good, on all branches, with everything made from it; fail if a byte is left.

    It cannot be undone. Copies that were exported or backed up are not reached.
    """
    if exports and file is None:
        raise InvalidRequest(
            "the daemon does not read your exports", hint="export again and remove the old ones"
        )
    with space_of(file, agent, sandbox) as space:
        erasure = partial(space.erase, fact=fact, episode=episode, session=session, subject=subject)
        if exports:
            erasure = partial(erasure, exports=exports)
        if not dry_run and not yes:
            would = erasure(dry_run=True)
            if as_json or not sys.stdin.isatty():
                raise InvalidRequest(
                    "an erasure cannot be undone", hint="--dry-run counts, --yes erases"
                )
            tables.receipt(would)
            typer.confirm("Erase it for good?", abort=True, err=True)
        found = erasure(dry_run=dry_run, reason=reason)
    print_json(found) if as_json else tables.receipt(found)
    if found.bytes_left or found.exports_left:
        raise typer.Exit(DataDamaged.exit_code)
