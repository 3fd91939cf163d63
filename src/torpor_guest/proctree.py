"""The guest's processes as /proc shows them, and the whole tree of a command where there is no cgroup for it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARKER = "TORPOR_EXEC_ID"
"""Variable that every command has in its environment, so that descendants that left its session are found."""

_PF_KTHREAD = 0x00200000
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAX_COMMAND = 4096


@dataclass(frozen=True)
class Process:
    """One line of /proc."""

    pid: int
    ppid: int
    uid: int
    session: int
    state: str
    is_kernel: bool
    rss_bytes: int
    name: str


def scan() -> dict[int, Process]:
    """Return every process, by pid."""
    found = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def command_of(process: Process) -> str:
    """Return the command line, cut at 4096 characters; the bare name in brackets if there is none."""
    try:
        raw = Path(f"/proc/{process.pid}/cmdline").read_bytes()[: _MAX_COMMAND + 1]
    except OSError:
        raw = b""
    text = os.fsdecode(raw.rstrip(b"\0").replace(b"\0", b" "))[:_MAX_COMMAND]
    return text or f"[{process.name}]"


def cgroup_of(pid: int) -> str:
    """Return the path of the process's cgroup v2 below the mount; empty if it has none or is gone."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def marker_of(pid: int) -> str:
    """Return the exec id in the process's environment; empty if it has none."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            block = file.read(256 << 10)
    except OSError:
        return ""
    mark = f"{MARKER}=".encode()
    for entry in block.split(b"\0"):
        if entry.startswith(mark):
            return os.fsdecode(entry[len(mark) :])
    return ""


def tree(leader: int, exec_id: str, processes: dict[int, Process]) -> Iterator[int]:
    """Yield the pids that belong to the command `exec_id`, whose first process is or was `leader`.

    A process belongs to it when it is in its session, carries its marker, or descends from one that does.
    """
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    pending = [
        process.pid
        for process in processes.values()
        if process.session == leader or process.pid == leader or marker_of(process.pid) == exec_id
    ]
    seen: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid not in seen and pid != os.getpid():
            seen.add(pid)
            yield pid
            pending += children.get(pid, ())


def kill_tree(leader: int, exec_id: str) -> None:
    """Kill all that belongs to a command; again and again, until a look finds nothing alive."""
    for _ in range(100):
        processes = {p.pid: p for p in scan().values() if p.state not in "ZX"}
        pids = list(tree(leader, exec_id, processes))
        for number in (
            signal.SIGSTOP,
            signal.SIGKILL,
        ):  # stopped first: then none can fork meanwhile
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        if not pids:
            return


def _read(pid: int) -> Process | None:
    try:
        with Path(f"/proc/{pid}/stat").open("rb") as file:
            data = file.read()
            uid = os.fstat(file.fileno()).st_uid
    except OSError:
        return None
    head, _, tail = data.rpartition(b")")
    fields = tail.split()
    return Process(
        pid=pid,
        ppid=int(fields[1]),
        uid=uid,
        session=int(fields[3]),
        state=fields[0].decode("ascii", "replace"),
        is_kernel=bool(int(fields[6]) & _PF_KTHREAD),
        rss_bytes=int(fields[21]) * _PAGE,
        name=os.fsdecode(head.partition(b"(")[2]),
    )
