"""`torpor usage`: what machines take of the host, and what went through them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import format_bytes, format_seconds
from torpor.cli import completion
from torpor.cli.find import find
from torpor.cli.output import AsJson, age, as_dict, print_facts, print_json, print_table
from torpor.errors import NotFound, VmmFailed, WrongState

if TYPE_CHECKING:
    from torpor.model_usage import MachineUsage


def usage(
    sandbox: Annotated[
        str | None,
        typer.Argument(
            metavar="[SANDBOX]",
            help="Its id, the beginning of it, or its name. Default: all that run or are paused.",
            autocompletion=completion.sandboxes,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what machines take now, and have used since they were started, woken or put back.

    Figures that a machine's driver does not count are shown as `-`.
    """
    if sandbox is not None:
        one = find(sandbox)
        found = one.usage()
        if as_json:
            print_json({"sandbox_id": one.id, **as_dict(found)})
        else:
            print_facts(_facts(found))
        return
    every = _of_all()
    if as_json:
        print_json([{"sandbox_id": name, **as_dict(found)} for name, found in every])
        return
    print_table(
        ("ID", "SINCE", "CPU", "MEMORY", "READ", "WRITTEN", "RECEIVED", "SENT", "THROTTLED"),
        [
            (
                name,
                age(found.since),
                format_seconds(found.cpu_seconds),
                format_bytes(found.memory_bytes),
                format_bytes(found.disk_read_bytes),
                format_bytes(found.disk_written_bytes),
                _size(found.network_received_bytes),
                _size(found.network_sent_bytes),
                _sum(found.disk_throttled, found.network_throttled),
            )
            for name, found in every
        ],
        empty="no machine runs",
    )


def _of_all() -> Sequence[tuple[str, MachineUsage]]:
    from torpor.sdk.sync_sandbox import Sandbox

    found = []
    for sandbox in Sandbox.list(state="running,paused", page_size=1000):
        with contextlib.suppress(NotFound, WrongState, VmmFailed):  # it ended meanwhile
            found.append((sandbox.id, sandbox.usage()))
    return found


def _facts(found: MachineUsage) -> dict[str, object]:
    return {
        "since": f"{found.since:%Y-%m-%d %H:%M:%S} UTC, {age(found.since)} ago",
        "cpu": format_seconds(found.cpu_seconds),
        "memory": format_bytes(found.memory_bytes),
        "disk read": f"{format_bytes(found.disk_read_bytes)} in {found.disk_reads}",
        "disk written": f"{format_bytes(found.disk_written_bytes)} in {found.disk_writes}",
        "disk failures": found.disk_failures,
        "disk throttled": found.disk_throttled,
        "received": _moved(found.network_received_bytes, found.network_received_packets),
        "sent": _moved(found.network_sent_bytes, found.network_sent_packets),
        "network failures": found.network_failures,
        "network throttled": found.network_throttled,
    }


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else format_bytes(size_bytes)


def _sum(*counts: int | None) -> int | None:
    return sum(count or 0 for count in counts) if any(c is not None for c in counts) else None


def _moved(size_bytes: int | None, packets: int | None) -> str | None:
    return None if size_bytes is None else f"{format_bytes(size_bytes)} in {packets}"
