"""Commands that put sandboxes down, pick them up, put them back, and make more of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from torpor.cli import completion
from torpor.cli.app import tell
from torpor.cli.find import SandboxArg, find
from torpor.cli.find_snapshot import SnapshotArg, find_snapshot, find_source
from torpor.cli.making import handed_over, one_handed_over
from torpor.cli.output import AsJson, Secret, pairs, print_json, secrets_of
from torpor.cli.quiesce import (
    Consistent,
    OnFailure,
    QuiesceFile,
    consistency_of,
    on_failure,
    read_quiesce,
)
from torpor.cli.volume_options import ReturnVolumes, volumes_mode
from torpor.errors import InvalidRequest, TorporError, error_to_wire

if TYPE_CHECKING:
    from torpor.model import AgentMemory, SandboxInfo, SnapshotInfo
    from torpor.sdk.snapshot_results import RestoreOptions
    from torpor.sdk.sync_sandbox import Sandbox

Env = Annotated[
    list[str] | None, typer.Option("-e", "--env", metavar="KEY=VALUE", help="For every command.")
]
Metadata = Annotated[
    list[str] | None, typer.Option("-m", "--metadata", metavar="KEY=VALUE", help="Its labels.")
]
NetworkOption = Annotated[
    str | None, typer.Option("--network", help="`user` or `none`; default: as it was.")
]
Ttl = Annotated[int | None, typer.Option("--ttl", help="Seconds until it ends; default: never.")]
Idle = Annotated[
    int | None, typer.Option("--idle", help="Hibernate after so many seconds without work.")
]
AllowCold = Annotated[
    bool,
    typer.Option("--allow-cold", help="Start from the disk alone if its memory cannot go on here."),
]
RestoredMemory = Annotated[
    str | None,
    typer.Option(
        "--agent-memory",
        metavar="reconcile|rewind|keep",
        help="How its agent's memory goes on; default: reconcile, of a fork rewind.",
    ),
]
Sandboxes = Annotated[
    list[str],
    typer.Argument(
        metavar="SANDBOX…",
        help="Ids, beginnings of them, or names.",
        autocompletion=completion.sandboxes,
    ),
]


def _options(
    env: list[str] | None,
    secret: list[str] | None,
    metadata: list[str] | None,
    network: str | None,
    ttl: int | None,
    idle: int | None,
    allow_cold: bool,
    agent_memory: str | None,
    volumes: str | None,
) -> RestoreOptions:
    if network not in (None, "user", "none"):
        raise InvalidRequest(f"--network {network!r} is not known", hint="--network user|none")
    options = {
        "env": pairs(env or [], "--env"),
        "secrets": secrets_of(secret or []),
        "metadata": pairs(metadata or [], "--metadata"),
        "network": network,
        "ttl_seconds": ttl,
        "idle_seconds": idle,
        "allow_cold": allow_cold,
        "agent_memory": None if agent_memory is None else _policy(agent_memory),
        "volumes": volumes_mode(volumes),
    }
    return cast("RestoreOptions", options)


def _policy(text: str) -> AgentMemory:
    from torpor.model import AgentMemory

    if text not in get_args(AgentMemory):
        raise InvalidRequest(
            f"--agent-memory {text!r} is not known", hint="--agent-memory reconcile|rewind|keep"
        )
    return cast("AgentMemory", text)


def _note_memory(info: SandboxInfo) -> None:
    if info.memory_note:
        print(f"note: the memory of {info.agent}: {info.memory_note}", file=sys.stderr)


def _note(info: SandboxInfo) -> None:
    _note_memory(info)
    if info.boot_mode == "cold":
        print(f"note: {info.id} was started cold, from the disk alone", file=sys.stderr)


def restore(
    snapshot: SnapshotArg,
    env: Env = None,
    secret: Secret = None,
    metadata: Metadata = None,
    network: NetworkOption = None,
    ttl: Ttl = None,
    idle: Idle = None,
    allow_cold: AllowCold = False,
    agent_memory: RestoredMemory = None,
    volumes: ReturnVolumes = None,
    as_json: AsJson = False,
) -> None:
    """Make a new sandbox that goes on exactly at a snapshot, and print its id.

    A snapshot holds the machine: memory, processes and disk. It does not undo what the machine did to the
    outside world: mail that was sent, rows that were written elsewhere, API calls that were made.
    Ctrl-C while it is being made takes it back.
    """
    from torpor.sdk.sandbox import AsyncSandbox

    options = _options(env, secret, metadata, network, ttl, idle, allow_cold, agent_memory, volumes)
    made = one_handed_over(AsyncSandbox.restore(find_snapshot(snapshot).id, **options))
    _note(made.info)
    print_json(made.info) if as_json else print(made.id)


def rollback(
    sandbox: SandboxArg,
    snapshot: SnapshotArg,
    cold: Annotated[
        bool, typer.Option("--cold", help="Put the disk back and boot; memory begins anew.")
    ] = False,
    agent_memory: Annotated[
        str,
        typer.Option(
            "--agent-memory",
            metavar="reconcile|rewind|keep",
            help="What its agent's memory does: what concerns the machine goes back; all does; nothing.",
        ),
    ] = "reconcile",
    volumes: ReturnVolumes = None,
    as_json: AsJson = False,
) -> None:
    """Put a sandbox back to a snapshot, with the same id; what it did since then is gone.

    A snapshot holds the machine: memory, processes and disk. Going back to it does not undo what the machine
    did to the outside world since then: mail that was sent, rows that were written elsewhere, API calls that
    were made. Take a snapshot first if you may want to come back to where it is now.
    """
    found = find(sandbox)
    found.rollback(
        find_snapshot(snapshot).id,
        memory="cold" if cold else "ram",
        agent_memory=_policy(agent_memory),
        volumes=volumes_mode(volumes),
    )
    _note_memory(found.info)
    print_json(found.info) if as_json else print(found.id)


def fork(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SANDBOX|SNAPSHOT",
            help="An id, the beginning of one, a name, or SANDBOX@LABEL.",
            autocompletion=completion.sources,
        ),
    ],
    count: Annotated[int, typer.Option("-n", "--count", help="How many.")] = 1,
    env: Env = None,
    secret: Secret = None,
    metadata: Metadata = None,
    network: NetworkOption = None,
    ttl: Ttl = None,
    idle: Idle = None,
    allow_cold: AllowCold = False,
    agent_memory: RestoredMemory = None,
    volumes: ReturnVolumes = None,
    as_json: AsJson = False,
) -> None:
    """Make new sandboxes that go on where this one is, copy-on-write, and print their ids.

    The source goes on. Each fork has an identity of its own. What the source did to the outside world is
    neither undone nor done again; from here on each fork acts on it for itself. Ctrl-C while they are being made
    takes all of them back.
    """
    from torpor.sdk.sandbox import AsyncSandbox

    options = _options(env, secret, metadata, network, ttl, idle, allow_cold, agent_memory, volumes)
    results = handed_over(AsyncSandbox.fork(find_source(source), count=count, **options))
    errors = [result for result in results if isinstance(result, TorporError)]
    for result in results:
        if not isinstance(result, TorporError):
            _note(result.info)
    if as_json:
        print_json(
            [{"error": error_to_wire(r)} if isinstance(r, TorporError) else r.info for r in results]
        )
    else:
        for result in results:
            tell(result) if isinstance(result, TorporError) else print(result.id)
    if errors:
        raise typer.Exit(errors[0].exit_code)


def hibernate(
    sandboxes: Sandboxes,
    consistency: Consistent = "filesystem",
    quiesce: QuiesceFile = None,
    on_quiesce_failure: OnFailure = None,
    as_json: AsJson = False,
) -> None:
    """Put sandboxes to sleep, which frees all their CPU and RAM; print where each sleeps.

    Any command or file request wakes a sandbox by itself.
    """
    wanted, hooks, policy = (
        consistency_of(consistency),
        read_quiesce(quiesce),
        on_failure(on_quiesce_failure),
    )

    def sleep(sandbox: Sandbox) -> SnapshotInfo:
        return sandbox.hibernate(consistency=wanted, quiesce=hooks, on_quiesce_failure=policy).info

    _each(sandboxes, as_json, sleep, "asleep at {0.id}")


def wake(sandboxes: Sandboxes, as_json: AsJson = False) -> None:
    """Let hibernated sandboxes go on at the exact instruction."""
    _each(sandboxes, as_json, lambda sandbox: sandbox.wake().info, "{0.state} in {0.boot_ms} ms")


def _each(sandboxes: list[str], as_json: bool, act: Callable[[Sandbox], Any], words: str) -> None:
    """Do one thing to each of several sandboxes; a failure of one does not keep it from the others."""
    found = [find(text) for text in sandboxes]
    results: list[dict[str, object]] = []
    code = 0
    for sandbox in found:
        try:
            result = act(sandbox)
        except TorporError as error:
            code = code or error.exit_code
            results.append({"sandbox_id": sandbox.id, "error": error_to_wire(error)})
            if not as_json:
                tell(error)
            continue
        results.append({"sandbox_id": sandbox.id, "result": result})
        if not as_json:
            print(f"{sandbox.id}  {words.format(result)}")
    if as_json:
        print_json(results)
    if code:
        raise typer.Exit(code)


def idle(
    sandbox: SandboxArg,
    seconds: Annotated[str, typer.Argument(metavar="SECONDS|never", help="Without work.")],
    as_json: AsJson = False,
) -> None:
    """Say after how long without work a sandbox hibernates by itself."""
    if seconds != "never" and not seconds.isdecimal():
        raise InvalidRequest(f"{seconds!r} is neither a number of seconds nor `never`")
    found = find(sandbox)
    found.set_idle(None if seconds == "never" else int(seconds))
    info = found.refresh()
    if as_json:
        print_json(info)
    else:
        print("never" if info.idle_seconds is None else f"after {info.idle_seconds} s without work")
