"""Host processes: run and wait, or start and let live. No shell, always reaped, whole groups killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from torpor.base.aio import finish
from torpor.errors import OperationTimeout, TorporError

SAFE_ENV = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""What a child may see of our environment: nothing that can hold a secret of ours."""


class HostCommandFailed(TorporError):
    """Raised when a host command ended with a status other than 0; facts have argv, status, stderr."""

    code, http_status, exit_code = "host.command_failed", 500, 30


@dataclass(frozen=True, slots=True)
class Finished:
    """How a host command ended."""

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes


def safe_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the part of our environment that a child may see, with `extra` over it."""
    return {key: os.environ[key] for key in SAFE_ENV if key in os.environ} | dict(extra or {})


async def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    cwd: Path | None = None,
    check: bool = True,
) -> Finished:
    """Run `argv` without a shell in its own process group and wait for it.

    The whole group is killed and reaped on timeout or cancellation.

    Raises:
        HostCommandFailed: the exit status is not 0 and `check` is set.
        OperationTimeout: it ran longer than `timeout_s` seconds.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(env) if env is not None else safe_env(),
        cwd=cwd,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            stdout, stderr = await process.communicate(stdin)
    except BaseException as exc:
        await finish(kill_group(process), within_s=5)
        if isinstance(exc, TimeoutError):
            raise OperationTimeout(
                f"{argv[0]} ran longer than {timeout_s:g} s and was killed", argv=list(argv)
            ) from exc
        raise
    assert process.returncode is not None
    done = Finished(tuple(argv), process.returncode, stdout, stderr)
    if check and done.status != 0:
        raise command_failed(argv, done.status, stderr)
    return done


def command_failed(argv: Sequence[str], status: int, stderr: bytes) -> HostCommandFailed:
    """Return the error for a host command that ended with `status`."""
    tail = stderr[-2000:].decode("utf-8", "replace").strip()
    return HostCommandFailed(
        f"{argv[0]} exited with status {status}: {tail or 'no output'}",
        argv=list(argv),
        status=status,
        stderr=tail,
    )


async def stream_lines(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> AsyncGenerator[str, None]:
    """Run `argv` and yield the lines of its stdout and stderr together as they come.

    The group is killed when the caller stops early.

    Raises:
        HostCommandFailed: at the end, if the exit status is not 0.
        OperationTimeout: it ran longer than `timeout_s` seconds.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(env) if env is not None else safe_env(),
        cwd=cwd,
        start_new_session=True,
        limit=1 << 20,
    )
    assert process.stdout is not None
    tail: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            async for raw in process.stdout:
                line = raw.decode("utf-8", "replace").rstrip("\n")
                tail = [*tail[-19:], line]
                yield line
            status = await process.wait()
    except TimeoutError as exc:
        raise OperationTimeout(
            f"{argv[0]} ran longer than {timeout_s:g} s and was killed", argv=list(argv)
        ) from exc
    finally:
        if process.returncode is None:
            await finish(kill_group(process), within_s=5)
    if status != 0:
        raise command_failed(argv, status, "\n".join(tail).encode())


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes of `start_detached` that are not reaped yet."""


def start_detached(
    argv: Sequence[str],
    *,
    log: IO[bytes],
    out: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    user: int | None = None,
    group: int | None = None,
    extra_groups: Sequence[int] | None = None,
) -> ProcessId:
    """Start `argv` in a session of its own, so that it outlives us; its output goes to the file `log`, or its stdout to `out`.

    As root it can be given another `user`, `group` and `extra_groups` from its first instruction on.
    Blocks until the program is loaded. Not asyncio's subprocess: that one kills its child when the loop
    closes. Await `ProcessId.wait` (or `kill`) on the result; it reaps.
    """
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=out or log,
        stderr=log,
        env=dict(env) if env is not None else safe_env(),
        cwd=cwd,
        start_new_session=True,
        pass_fds=tuple(pass_fds),
        user=user,
        group=group,
        extra_groups=extra_groups,
        umask=0o077,
    )
    _children[child.pid] = child
    fields = _stat_fields(child.pid)
    assert fields is not None, "our own child cannot vanish before it is reaped"
    return ProcessId(child.pid, int(fields[19]))


def _reap(pid: int) -> None:
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]


async def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill the process group led by `process` and reap its leader."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def host_boot() -> str:
    """Return the id of this boot of the host: another one after each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that can be told from a later one with the same number, also after our restart."""

    pid: int
    started_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks from boot to the process's start."""

    @staticmethod
    def of(pid: int) -> ProcessId | None:
        """Return the identity of the running process `pid`; None if there is none or it is a zombie.

        A zombie that still has other threads runs: until the last of them has ended, which a slow disk may delay after a
        kill, its files are open, and what it was writing may still be written.
        """
        fields = _stat_fields(pid)
        if fields is None or fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1):
            return None
        return ProcessId(pid, int(fields[19]))

    def alive(self) -> bool:
        """Return whether this very process still runs."""
        return ProcessId.of(self.pid) == self

    def open(self) -> int | None:
        """Return a pidfd of this very process, to be closed by the caller; None if it is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if not self.alive():
            os.close(fd)
            return None
        return fd

    def usage(self) -> ProcessUsage | None:
        """Return what this very process has used; None if it is gone. Blocks."""
        fields = _stat_fields(self.pid)
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        private = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
        if fields is None or private is None or int(fields[19]) != self.started_ticks:
            return None
        per_s = os.sysconf("SC_CLK_TCK")
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - self.started_ticks / per_s
        return ProcessUsage(
            started_at=datetime.fromtimestamp(time.time() - age_s, UTC),
            cpu_s=(int(fields[11]) + int(fields[12])) / per_s,
            private_bytes=int(private[1]) << 10,
        )

    async def kill(self, *, within_s: float = 5.0) -> None:
        """Kill this very process and wait until it is gone; nothing happens if it is gone already.

        Raises:
            OperationTimeout: it is still there after `within_s` seconds.
        """
        fd = self.open()
        if fd is None:
            _reap(self.pid)
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            await _readable(fd, within_s=within_s)
        except TimeoutError as exc:
            raise OperationTimeout(
                f"process {self.pid} did not end {within_s:g} s after SIGKILL", pid=self.pid
            ) from exc
        finally:
            os.close(fd)
        _reap(self.pid)

    async def wait(self) -> None:
        """Return when this very process has ended."""
        fd = self.open()
        if fd is None:
            _reap(self.pid)
            return
        try:
            await _readable(fd, within_s=None)
        finally:
            os.close(fd)
        _reap(self.pid)


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What a process has used so far."""

    started_at: datetime
    cpu_s: float
    """In user space and in the kernel, of all its threads."""
    private_bytes: int
    """Of its memory, that no file on disk holds."""


async def _readable(fd: int, *, within_s: float | None) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        async with asyncio.timeout(within_s):
            await ready.wait()
    finally:
        loop.remove_reader(fd)


def _stat_fields(pid: int) -> list[bytes] | None:
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return data.rpartition(b")")[2].split()
