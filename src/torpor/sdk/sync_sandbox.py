"""`Sandbox`: the synchronous face of `AsyncSandbox`, call for call."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Literal, Self, overload

from torpor.errors import CommandLost, NotFound, TorporError
from torpor.model import (
    AgentMemory,
    ExecEvent,
    ExecInfo,
    Network,
    OnTimeout,
    ProcessInfo,
    SandboxInfo,
    SandboxState,
)
from torpor.model_usage import MachineUsage
from torpor.sdk import sync_forks
from torpor.sdk.client import Client
from torpor.sdk.collect import OUTPUT_LIMIT_BYTES, Collector, TextCallback
from torpor.sdk.dual import dual
from torpor.sdk.loop import loop_thread
from torpor.sdk.process import Command, check_exec_args
from torpor.sdk.results import ExecResult
from torpor.sdk.sandbox import AsyncSandbox
from torpor.sdk.sync_checks import Checks
from torpor.sdk.sync_contexts import Code
from torpor.sdk.sync_familiar import Familiar
from torpor.sdk.sync_files import Filesystem
from torpor.sdk.sync_memory import MemorySpace
from torpor.sdk.sync_moves import Moves
from torpor.sdk.sync_ports import Ports
from torpor.sdk.sync_process import Process
from torpor.sdk.sync_proofs import Proofs
from torpor.sdk.sync_terminals import Terminals
from torpor.sdk.sync_volumes import SandboxVolumes
from torpor.sdk.volume_results import Volumes


class Sandbox(Moves, Checks, Proofs, SandboxVolumes, Ports, Terminals, Code, Familiar):
    """One sandbox. Made by `create`, `get` or `list`; as a context manager it is deleted at the end.

    What asks nothing but an id also works on the class with one: `refresh`, `delete`, `kill`, `pause`,
    `resume`, `set_ttl`, and all of `Moves`. Calls may be made from any thread.
    `torpor.sdk.sandbox.AsyncSandbox` says more of each.
    """

    @classmethod
    def create(
        cls,
        template: str = "base",
        *,
        vcpus: int | None = None,
        ram_mib: int | None = None,
        disk_gib: int | None = None,
        network: Network | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        ttl_seconds: int | None = None,
        on_timeout: OnTimeout = "delete",
        idle_seconds: int | None = None,
        from_snapshot: str | None = None,
        agent_memory: AgentMemory | None = None,
        volumes: Volumes | None = None,
        client: Client | None = None,
    ) -> Self:
        """Make a sandbox and return it when its agent answers.

        It lives on when the script ends, unless it is used as a context manager or has a TTL.

        Raises:
            NotFound: no such template or volume; the hint says how to make it.
            VolumeHeld: another sandbox has a volume in a way that forbids this; nothing was made.
            InvalidRequest: a value cannot be right.
            InsufficientResources: the host has no memory or disk for it; nothing was made.
            HostNotReady: something on the host is missing; the hint has the command that mends it.
        """
        return cls(
            loop_thread.run(
                AsyncSandbox.create(
                    template,
                    vcpus=vcpus,
                    ram_mib=ram_mib,
                    disk_gib=disk_gib,
                    network=network,
                    env=env,
                    secrets=secrets,
                    metadata=metadata,
                    ttl_seconds=ttl_seconds,
                    on_timeout=on_timeout,
                    idle_seconds=idle_seconds,
                    from_snapshot=from_snapshot,
                    agent_memory=agent_memory,
                    volumes=volumes,
                    client=client,
                )
            )
        )

    @classmethod
    def get(cls, sandbox_id: str, *, client: Client | None = None) -> Self:
        """Return the sandbox with that id. Raises `NotFound`."""
        return cls(loop_thread.run(AsyncSandbox.get(sandbox_id, client=client)))

    @classmethod
    def list(
        cls,
        *,
        state: SandboxState | str | None = None,
        template: str | None = None,
        metadata: Mapping[str, str] | None = None,
        page_size: int = 100,
        client: Client | None = None,
    ) -> Iterator[Self]:
        """Yield the sandboxes that match, newest first, page by page."""
        found = AsyncSandbox.list(
            state=state, template=template, metadata=metadata, page_size=page_size, client=client
        )
        for sandbox in loop_thread.iterate(found):
            yield cls(sandbox)

    @dual
    def refresh(self) -> SandboxInfo:
        """Ask what is so about the sandbox, and return it. Raises `NotFound`."""
        return loop_thread.run(self._sandbox.refresh())

    @dual
    def delete(self) -> None:
        """End and remove the sandbox, from any state; one that is deleted already is no error."""
        loop_thread.run(self._sandbox.delete())

    @dual
    def kill(self) -> None:
        """Do what `delete` does."""
        loop_thread.run(self._sandbox.kill())

    @dual
    def pause(self) -> None:
        """Stop the machine's CPUs; RAM and processes stay. Idempotent. Raises `WrongState`."""
        loop_thread.run(self._sandbox.pause())

    @dual
    def resume(self) -> None:
        """Let a paused machine run on. Idempotent. Raises `WrongState`."""
        loop_thread.run(self._sandbox.resume())

    @dual
    def set_ttl(self, ttl_seconds: int | None, *, on_timeout: OnTimeout | None = None) -> None:
        """Let the sandbox end `ttl_seconds` from now; None: never."""
        loop_thread.run(self._sandbox.set_ttl(ttl_seconds, on_timeout=on_timeout))

    @dual
    def usage(self) -> MachineUsage:
        """Return what the machine takes, and has used since its VMM was started: CPU, memory, disks, network.

        Figures that its driver does not count are None. A sandbox that sleeps is not woken: it raises `WrongState`.
        """
        return loop_thread.run(self._sandbox.usage())

    fork = sync_forks.fork

    def logs(self, *, follow: bool = False) -> Iterator[bytes]:
        """Yield the machine's console log; with `follow` as it grows, until the machine ends."""
        return loop_thread.iterate(self._sandbox.logs(follow=follow))

    @property
    def filesystem(self) -> Filesystem:
        """The sandbox's files."""
        return Filesystem(self._sandbox.filesystem)

    @property
    def memory(self) -> MemorySpace:
        """What the sandbox's agent knows: the agent in its metadata (`agent`), else one named as the sandbox.

        It writes for the machine as it is now: once the machine was put back, ask for `memory` again.
        """
        return MemorySpace(self._sandbox.memory)

    @overload
    def exec(
        self,
        command: Command,
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | bool | None = None,
        check: bool = False,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        background: Literal[False] = False,
    ) -> ExecResult: ...
    @overload
    def exec(
        self,
        command: Command,
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | bool | None = None,
        check: bool = False,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        background: Literal[True],
    ) -> Process: ...
    def exec(
        self,
        command: Command,
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | bool | None = None,
        check: bool = False,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
        background: bool = False,
    ) -> ExecResult | Process:
        """Run a command and return how it ended; with `background` return its handle at once.

        A connection that is lost meanwhile is made again. The command is never started twice.

        Args:
            command: text for `/bin/sh -c`, or the words of a command run as they are.
            timeout_seconds: then its whole process tree is killed; None: no limit.
            cwd: where to run; None: the template's default.
            env: laid over the sandbox's environment.
            user: name or uid; None: the template's default user.
            stdin: what the command reads; None: nothing. True (with `background`): a pipe for `write_stdin`.
            check: raise for an exit code other than 0.
            output_limit_bytes: kept of each stream; what is more is counted and stays in the guest.
            on_stdout: called in this thread with text as it comes, all of it.
            on_stderr: the same for stderr.
            background: return a `Process`.

        Raises:
            OperationTimeout: killed at its limit; facts have `stdout` and `stderr` until then.
            CommandFailed: with `check`; facts have exit_code, stdout, stderr.
            CommandLost: its end cannot be known.
            InvalidRequest: no such user, folder or program.
            WrongState: the sandbox is not running.
        """
        check_exec_args(background, stdin)
        if background:
            return Process(
                loop_thread.run(
                    self._sandbox.exec(
                        command,
                        timeout_seconds=timeout_seconds,
                        cwd=cwd,
                        env=env,
                        user=user,
                        stdin=stdin,
                        background=True,
                    )
                )
            )
        if on_stdout is None and on_stderr is None:
            return loop_thread.run(
                self._sandbox.exec(
                    command,
                    timeout_seconds=timeout_seconds,
                    cwd=cwd,
                    env=env,
                    user=user,
                    stdin=stdin,
                    check=check,
                    output_limit_bytes=output_limit_bytes,
                )
            )
        collector = Collector(output_limit_bytes, on_stdout=on_stdout, on_stderr=on_stderr)
        assert not isinstance(stdin, bool)
        events = self.exec_stream(
            command, timeout_seconds=timeout_seconds, cwd=cwd, env=env, user=user, stdin=stdin
        )
        result = _collect(events, collector)
        return result.check() if check else result

    def exec_stream(
        self,
        command: Command,
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
    ) -> Iterator[ExecEvent]:
        """Run a command and yield `ExecStarted`, `ExecOutput` as it comes, `ExecEnded` last. Raises as `exec`."""
        return loop_thread.iterate(
            self._sandbox.exec_stream(
                command, timeout_seconds=timeout_seconds, cwd=cwd, env=env, user=user, stdin=stdin
            )
        )

    def attach(self, exec_id: str, *, stdout_offset: int = 0, stderr_offset: int = 0) -> Process:
        """Return a handle of an exec that was started before, by anyone. Raises `NotFound`."""
        return Process(
            loop_thread.run(
                self._sandbox.attach(
                    exec_id, stdout_offset=stdout_offset, stderr_offset=stderr_offset
                )
            )
        )

    def execs(self) -> builtins.list[ExecInfo]:
        """Return the execs that the guest's agent knows, running and ended, oldest first."""
        return loop_thread.run(self._sandbox.execs())

    def processes(self) -> builtins.list[ProcessInfo]:
        """Return the guest's processes."""
        return loop_thread.run(self._sandbox.processes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(NotFound):
            self.delete()


def _collect(events: Iterator[ExecEvent], collector: Collector) -> ExecResult:
    """Follow `events` in this thread, where the callbacks may call the SDK again."""
    try:
        for event in events:
            collector.add(event)
    except TorporError as error:
        collector.explain(error)
        raise
    if collector.result is None:
        raise CommandLost("the command sent no end")
    return collector.result
