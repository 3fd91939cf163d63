"""Commands that read a memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torpor.cli import memory_tables as tables
from torpor.cli.memory_space import (
    Agent,
    File,
    Include,
    KnownAt,
    Sandbox,
    ValidAt,
    given_text,
    known_at,
    moment,
    space_of,
    whole_memory,
)
from torpor.cli.output import AsJson, print_facts, print_json, print_table
from torpor.errors import DataDamaged

if TYPE_CHECKING:
    from torpor.model_memory import Explanation, FactExplanation

FactId = Annotated[str, typer.Argument(metavar="FACT", help="A fact's id, `fact_…`.")]


def spaces(file: File = None, as_json: AsJson = False) -> None:
    """List whose memory is there."""
    with whole_memory(file) as memory:
        found = [memory.space(agent).info() for agent in memory.agents()]
    if as_json:
        print_json(found)
    else:
        print_table(
            ("AGENT", "BRANCH", "EPOCH", "LAST TX"),
            [(s.agent, s.branch, s.epoch, s.tx) for s in found],
            empty="nobody has a memory there",
        )


def recall(
    query: Annotated[str, typer.Argument(help="What it is about; `-` reads stdin.")],
    k: Annotated[int, typer.Option("-k", help="At most so many items.")] = 8,
    tokens: Annotated[int, typer.Option("--tokens", help="At most so many tokens.")] = 1200,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only such facts, or `episode`.")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="Only facts of world, machine or task.")
    ] = None,
    include: Include = None,
    valid_at: ValidAt = None,
    known: KnownAt = None,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Say what is known about something: what holds now, within a budget."""
    with space_of(file, agent, sandbox) as space:
        found = space.recall(
            given_text(query),
            k=k,
            token_budget=tokens,
            kinds=kind,
            scopes=scope,
            include=include or (),
            valid_at=moment(valid_at, "--valid-at"),
            known_at=known_at(known),
        )
    print_json(found) if as_json else tables.recall(found)


def explain(
    what: Annotated[str, typer.Argument(metavar="RECALL|FACT", help="The id of either.")],
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Say why a recall gave what it gave, or why a fact is held."""
    with space_of(file, agent, sandbox) as space:
        found: Explanation | FactExplanation = space.explain(what)
    if as_json:
        print_json(found)
    elif what.startswith("fact_"):
        tables.explain_fact(found)  # type: ignore[arg-type]  # the id says which
    else:
        tables.explain_recall(found)  # type: ignore[arg-type]  # the id says which


def why_not(
    fact: FactId,
    query: Annotated[str, typer.Argument(help="What the recall is about.")],
    k: Annotated[int, typer.Option("-k", help="At most so many items.")] = 8,
    tokens: Annotated[int, typer.Option("--tokens", help="At most so many tokens.")] = 1200,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Say why a recall does not give a fact."""
    with space_of(file, agent, sandbox) as space:
        found = space.why_not(fact, query, k=k, token_budget=tokens)
    print_json(found) if as_json else tables.why_not(found)


def facts(
    subject: Annotated[str | None, typer.Argument(metavar="[SUBJECT]", help="Only of it.")] = None,
    attribute: Annotated[
        str | None, typer.Argument(metavar="[ATTRIBUTE]", help="Only this of it.")
    ] = None,
    include: Include = None,
    valid_at: ValidAt = None,
    known: KnownAt = None,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """List the facts that hold."""
    with space_of(file, agent, sandbox) as space:
        found = space.facts(
            subject,
            attribute,
            valid_at=moment(valid_at, "--valid-at"),
            known_at=known_at(known),
            include=include or (),
        )
    print_json(found) if as_json else tables.facts(found)


def episodes(
    session: Annotated[str | None, typer.Option("--session", help="Only of this one.")] = None,
    known: KnownAt = None,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """List what was recorded, in order."""
    with space_of(file, agent, sandbox) as space:
        found = space.episodes(session, known_at=known_at(known))
    print_json(found) if as_json else tables.episodes(found)


def history(
    what: Annotated[str, typer.Argument(metavar="FACT|SUBJECT", help="A fact's id, or a name.")],
    attribute: Annotated[
        str | None, typer.Argument(metavar="[ATTRIBUTE]", help="Of the subject.")
    ] = None,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Say all that happened to a fact and its versions, or to what is known of a subject."""
    with space_of(file, agent, sandbox) as space:
        if what.startswith("fact_") and attribute is None:
            found = space.history(what)
        else:
            found = space.history(subject=what, attribute=attribute)
    print_json(found) if as_json else tables.history(found)


def timeline(
    subject: Annotated[str, typer.Argument(help="A name.")],
    known: KnownAt = None,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Say what held about a subject, from when to when."""
    with space_of(file, agent, sandbox) as space:
        found = space.timeline(subject, known_at=known_at(known))
    print_json(found) if as_json else tables.timeline(found)


def diff(
    tx1: Annotated[int, typer.Argument(metavar="TX", help="A transaction's number.")],
    tx2: Annotated[
        int | None, typer.Argument(metavar="[TX]", help="Another; default: the last.")
    ] = None,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Say which facts came to hold and which ceased between two transactions."""
    with space_of(file, agent, sandbox) as space:
        found = space.diff(tx1, space.info().tx if tx2 is None else tx2)
    print_json(found) if as_json else tables.diff(found)


def conflicts(
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Also those that are settled.")
    ] = False,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """List what cannot all be true and waits for a decision."""
    with space_of(file, agent, sandbox) as space:
        found = space.conflicts(include_resolved=resolved)
    print_json(found) if as_json else tables.conflicts(found)


def effects(
    agent: Agent = None, sandbox: Sandbox = None, file: File = None, as_json: AsJson = False
) -> None:
    """List what was done to the outside world; no rollback takes one back."""
    with space_of(file, agent, sandbox) as space:
        found = space.effects()
    print_json(found) if as_json else tables.effects(found)


def verify(
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="HASH", help="A head that was kept elsewhere.")
    ] = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Compare every row with the hash chain; fail if one was changed from outside."""
    with whole_memory(file) as memory:
        found = memory.verify_chain(expect=expect)
    if as_json:
        print_json(found)
    else:
        print_facts(
            {
                "ok": "yes" if found.ok else "no",
                "transactions": found.transactions,
                "head": found.head,
                "problems": "\n".join(found.problems) or None,
            }
        )
    if not found.ok:
        raise typer.Exit(DataDamaged.exit_code)
