"""Commands on a whole memory: copies, branches, files, and how good it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from torpor.base.units import format_bytes
from torpor.cli import memory_tables as tables
from torpor.cli.memory_space import (
    Agent,
    File,
    Reason,
    Sandbox,
    given_text,
    space_of,
    whole_memory,
)
from torpor.cli.output import AsJson, print_facts, print_json, print_table

MemoryPath = Annotated[str, typer.Argument(metavar="PATH", help="Below `/memories`.")]


def export(
    path: Annotated[Path, typer.Argument(help="A file that is not there yet.")],
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Write the memory of all agents to a file, as JSON lines with all evidence."""
    with whole_memory(file) as memory:
        memory.export(path)
    size = path.stat().st_size
    print_json({"path": path, "size_bytes": size}) if as_json else print(
        f"{path}  {format_bytes(size)}"
    )


def import_(
    path: Annotated[Path, typer.Argument(help="An export.")],
    salvaged: Annotated[
        bool,
        typer.Option("--salvaged", help="It is what a salvage saved: leave out what cannot be."),
    ] = False,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Read an export into a memory, which must be empty."""
    with whole_memory(file, new=True) as memory:
        done = memory.import_(path, verify=not salvaged)
    print_json(done) if as_json else print_facts(
        {"rows": done.rows, "head": done.head} | ({"lost": done.lost} if salvaged else {})
    )


def salvage(
    damaged: Annotated[Path, typer.Argument(help="A damaged memory file; it is only read.")],
    to: Annotated[Path, typer.Argument(help="The export to write.")],
    as_json: AsJson = False,
) -> None:
    """Write what can still be read of a damaged file to an export."""
    from torpor.memory import Memory

    done = Memory.salvage(damaged, to=to)
    print_json(done) if as_json else print_facts(
        {"rows": done.rows, "lost": done.lost, "export": done.path}
    )


def embed(file: File = None, as_json: AsJson = False) -> None:
    """Embed what the embedder has not embedded yet, such as after it was installed or changed."""
    with whole_memory(file) as memory:
        count = memory.embed_missing()
    print_json({"embedded": count}) if as_json else print(count)


def fork(
    new_agent: Annotated[str, typer.Argument(help="The name of the new agent.")],
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Give a new agent a child branch of a memory, and print the branch's id."""
    with space_of(file, agent, sandbox) as space:
        info = space.fork(new_agent, reason=reason).info()
    print_json(info) if as_json else print(info.branch)


def switch(
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="One of the same agent.")],
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Go to another branch of the same agent: the way back from a rewind."""
    with space_of(file, agent, sandbox) as space:
        did = space.switch(branch, reason=reason)
    print_json(did) if as_json else tables.done(did)


def merge(
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="Where the facts are.")],
    take: Annotated[
        list[str] | None, typer.Option("--take", metavar="FACT", help="Only this; default: all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the facts, take none.")] = False,
    reason: Reason = "",
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Take what another branch of the family learned of the world; contradictions become conflicts."""
    with space_of(file, agent, sandbox) as space:
        plan = space.plan_merge(branch)
        if dry_run:
            print_json(plan) if as_json else tables.facts(plan.facts)
            return
        did = space.merge(plan, take=take, reason=reason)
    print_json(did) if as_json else tables.done(did)


files = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="The memory as files under `/memories`, for agents with a file-based memory tool.",
)


@files.command("ls")
def files_ls(
    agent: Agent = None, sandbox: Sandbox = None, file: File = None, as_json: AsJson = False
) -> None:
    """List the files."""
    with space_of(file, agent, sandbox) as space:
        found = space.files.files()
    if as_json:
        print_json(found)
    else:
        print_table(
            ("PATH", "SIZE", "FACT"),
            [(f.path, format_bytes(f.size_bytes), f.fact) for f in found],
            empty="no files",
        )


@files.command("view")
def files_view(
    path: MemoryPath,
    lines: Annotated[
        tuple[int, int] | None, typer.Option("--lines", help="First and last line; -1: the last.")
    ] = None,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Print a file with line numbers, or the names below a folder."""
    with space_of(file, agent, sandbox) as space:
        _say(space.files.view(path, lines), as_json)


@files.command("create")
def files_create(
    path: MemoryPath,
    text: Annotated[str, typer.Argument(help="All of it; `-` reads stdin.")],
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Write a whole file, new or in place of the old one."""
    with space_of(file, agent, sandbox, new=True) as space:
        _say(space.files.create(path, given_text(text)), as_json)


@files.command("str-replace")
def files_str_replace(
    path: MemoryPath,
    old: Annotated[str, typer.Argument(help="A text that is in it exactly once.")],
    new: Annotated[str, typer.Argument(help="What takes its place.")],
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Replace a text in a file."""
    with space_of(file, agent, sandbox) as space:
        _say(space.files.str_replace(path, old, new), as_json)


@files.command("insert")
def files_insert(
    path: MemoryPath,
    line: Annotated[int, typer.Argument(help="After this line; 0 is before the first.")],
    text: Annotated[str, typer.Argument(help="What to insert.")],
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Insert a text into a file."""
    with space_of(file, agent, sandbox) as space:
        _say(space.files.insert(path, line, text), as_json)


@files.command("rm")
def files_rm(
    path: MemoryPath,
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Delete a file, or a folder with all below it; what they held stays in the history."""
    with space_of(file, agent, sandbox) as space:
        _say(space.files.delete(path), as_json)


@files.command("mv")
def files_mv(
    path: MemoryPath,
    target: Annotated[str, typer.Argument(metavar="NEW", help="Below `/memories`.")],
    agent: Agent = None,
    sandbox: Sandbox = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Give a file another path."""
    with space_of(file, agent, sandbox) as space:
        _say(space.files.rename(path, target), as_json)


def _say(text: str, as_json: bool) -> None:
    from torpor.cli.output import visible

    print_json({"text": text}) if as_json else print(visible(text, keep_lines=True))


def bench(
    locomo: Annotated[
        Path | None, typer.Option(help="Folder with locomo10.json and locomo_errors.json.")
    ] = None,
    longmemeval: Annotated[Path | None, typer.Option(help="A LongMemEval file.")] = None,
    beam: Annotated[Path | None, typer.Option(help="A folder of BEAM chats.")] = None,
    updates: Annotated[int, typer.Option(help="Length of the generated stream; 0: none.")] = 10_000,
    size: Annotated[
        list[int] | None, typer.Option("--size", help="Facts for the latency; default: 10k, 100k.")
    ] = None,
    no_embedder: Annotated[bool, typer.Option("--no-embedder", help="Text index only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure memory on this machine: evidence recall, structural checks, latency. It takes minutes."""
    from torpor.memory.bench import run
    from torpor.memory.embed.minilm import MiniLM

    print("measuring; with 100,000 facts this takes some minutes", file=sys.stderr)
    found = run(
        embedder=None if no_embedder else MiniLM(),
        locomo=locomo,
        longmemeval=longmemeval,
        beam=beam,
        updates=updates,
        sizes=size or (10_000, 100_000),
    )
    if as_json:
        print_json(found)
        return
    rows = [
        (group, name, value)
        for group, values in found.items()
        if isinstance(values, dict)
        for name, value in _flat(values)
    ]
    print_table(("GROUP", "FIGURE", "VALUE"), rows, empty="nothing was measured")
    for note in found["notes"]:
        print(note)


def _flat(values: dict[str, object], before: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            found += _flat(value, f"{before}{name}.")
        else:
            found.append((f"{before}{name}", value))
    return found
