"""`AsyncSandbox`: one machine of one agent, as an object."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, overload

from torpor.base.aio import closing
from torpor.errors import NotFound
from torpor.model import (
    AgentMemory,
    ExecEvent,
    ExecId,
    ExecInfo,
    Network,
    OnTimeout,
    ProcessInfo,
    SandboxInfo,
    SandboxState,
)
from torpor.model_usage import MachineUsage
from torpor.sdk import forks
from torpor.sdk.checks import AsyncChecks
from torpor.sdk.client import Client, connection, raw_bytes
from torpor.sdk.collect import OUTPUT_LIMIT_BYTES, Collector, TextCallback
from torpor.sdk.contexts import AsyncCode
from torpor.sdk.dual import dual
from torpor.sdk.familiar import AsyncFamiliar
from torpor.sdk.feed import ExecFeed
from torpor.sdk.files import AsyncFilesystem
from torpor.sdk.memory import AsyncMemorySpace
from torpor.sdk.moves import AsyncMoves
from torpor.sdk.parse import chunk_bytes, exec_info, machine_usage, process_info, sandbox_info
from torpor.sdk.ports import AsyncPorts
from torpor.sdk.process import (
    AsyncProcess,
    Command,
    check_exec_args,
    collect,
    exec_body,
    start_process,
)
from torpor.sdk.proofs import AsyncProofs
from torpor.sdk.results import ExecResult
from torpor.sdk.sandbox_volumes import AsyncSandboxVolumes
from torpor.sdk.sse import sse_events
from torpor.sdk.terminals import AsyncTerminals
from torpor.sdk.volume_results import Volumes, volumes_body

CREATE_LIMIT_S = 600.0
"""Seconds for a machine to boot; without hardware virtualisation on a busy host it can take minutes."""

LIFE_LIMIT_S = 120.0


class AsyncSandbox(
    AsyncMoves,
    AsyncChecks,
    AsyncProofs,
    AsyncSandboxVolumes,
    AsyncPorts,
    AsyncTerminals,
    AsyncCode,
    AsyncFamiliar,
):
    """One sandbox. Made by `create`, `get` or `list`; as a context manager it is deleted at the end.

    What asks nothing but an id also works on the class with one: `refresh`, `delete`, `kill`, `pause`,
    `resume`, `set_ttl`, and all of `AsyncMoves` and `AsyncChecks`.
    """

    @classmethod
    async def create(
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

        Args:
            template: a built template; `Templates.build` makes one. With `from_snapshot` it is not used.
            vcpus: CPUs; None: the template's. So with the other sizes.
            ram_mib: memory in MiB.
            disk_gib: disk in GiB.
            network: `user` (out, not in) or `none`; None: `user`, or the snapshot's.
            env: laid over the image's environment in every exec.
            secrets: the same; for values that are secret. Neither is ever shown, logged or kept by the daemon. They
                are in the machine, and so in its snapshots.
            metadata: your own labels; `list` filters by them.
            ttl_seconds: seconds of running until `on_timeout` happens; None: never.
            on_timeout: `delete` or `hibernate`.
            idle_seconds: hibernate by itself after so long without work; None: never.
            from_snapshot: go on at this snapshot instead, as `restore`; its sizes cannot be changed.
            agent_memory: with `from_snapshot`, as in `restore`.
            volumes: by path, such as `{"/data": "name"}` or `{"/data": {"volume": "name", "read_only": True}}`.
            client: which daemon; None: as the environment says.

        Raises:
            NotFound: no such template or volume; the hint says how to make it.
            VolumeHeld: another sandbox has a volume in a way that forbids this; nothing was made.
            InvalidRequest: a value cannot be right.
            InsufficientResources: the host has no memory or disk for it; nothing was made.
            HostNotReady: something on the host is missing; the hint has the command that mends it.
        """
        body = {
            "template": template,
            "vcpus": vcpus,
            "ram_mib": ram_mib,
            "disk_gib": disk_gib,
            "network": network,
            "env": dict(env or {}),
            "secrets": dict(secrets or {}),
            "metadata": dict(metadata or {}),
            "ttl_seconds": ttl_seconds,
            "on_timeout": on_timeout,
            "idle_seconds": idle_seconds,
            "from_snapshot": from_snapshot,
            "agent_memory": agent_memory,
            "volumes": volumes_body(volumes),
        }
        made = connection(client)
        info = sandbox_info(
            await made.call_once("/v1/sandboxes", body=body, limit_s=CREATE_LIMIT_S)
        )
        return cls(info.id, info, client)

    @classmethod
    async def get(cls, sandbox_id: str, *, client: Client | None = None) -> Self:
        """Return the sandbox with that id. Raises `NotFound`."""
        found = cls.handle(sandbox_id, client=client)
        await found.refresh()
        return found

    @classmethod
    async def list(
        cls,
        *,
        state: SandboxState | str | None = None,
        template: str | None = None,
        metadata: Mapping[str, str] | None = None,
        page_size: int = 100,
        client: Client | None = None,
    ) -> AsyncGenerator[Self, None]:
        """Yield the sandboxes that match, newest first, page by page.

        Args:
            state: only this one; None: all but `deleted`.
            template: only of this template.
            metadata: only with all of these labels.
            page_size: how many a request asks for, 1 to 1000.
            client: which daemon; None: as the environment says.
        """
        made = connection(client)
        query = [("limit", str(page_size))]
        query += [("state", str(state))] if state else []
        query += [("template", template)] if template else []
        query += [(f"metadata.{key}", value) for key, value in (metadata or {}).items()]
        cursor: str | None = None
        while True:
            page = await made.call(
                "GET", "/v1/sandboxes", query=[*query, *([("cursor", cursor)] if cursor else [])]
            )
            for item in page["items"]:
                info = sandbox_info(item)
                yield cls(info.id, info, client)
            cursor = page["next_cursor"]
            if cursor is None:
                return

    @dual
    async def refresh(self) -> SandboxInfo:
        """Ask what is so about the sandbox, and return it. Raises `NotFound`."""
        self._info = sandbox_info(await self._connection.call("GET", self._path))
        return self._info

    @dual
    async def delete(self) -> None:
        """End and remove the sandbox, from any state; one that is deleted already is no error."""
        await self._connection.call("DELETE", self._path, limit_s=LIFE_LIMIT_S)

    @dual
    async def kill(self) -> None:
        """Do what `delete` does."""
        await self._connection.call("DELETE", self._path, limit_s=LIFE_LIMIT_S)

    @dual
    async def pause(self) -> None:
        """Stop the machine's CPUs; RAM and processes stay. Idempotent. Raises `WrongState`."""
        await self._connection.call("POST", f"{self._path}/pause", limit_s=LIFE_LIMIT_S)

    @dual
    async def resume(self) -> None:
        """Let a paused machine run on. Idempotent. Raises `WrongState`."""
        await self._connection.call("POST", f"{self._path}/resume", limit_s=LIFE_LIMIT_S)

    @dual
    async def set_ttl(
        self, ttl_seconds: int | None, *, on_timeout: OnTimeout | None = None
    ) -> None:
        """Let the sandbox end `ttl_seconds` from now; None: never."""
        body = {"ttl_seconds": ttl_seconds, "on_timeout": on_timeout}
        await self._connection.call("PATCH", f"{self._path}/lifecycle", body=body)

    @dual
    async def usage(self) -> MachineUsage:
        """Return what the machine takes, and has used since its VMM was started: CPU, memory, disks, network.

        Figures that its driver does not count are None. A sandbox that sleeps is not woken: it raises `WrongState`.
        """
        return machine_usage(await self._connection.call("GET", f"{self._path}/usage"))

    fork = forks.fork

    async def logs(self, *, follow: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield the machine's console log; with `follow` as it grows, until the machine ends."""
        query = {"follow": follow}
        async with self._connection.stream("GET", f"{self._path}/logs", query=query) as reply:
            if not follow:
                async with closing(raw_bytes(reply)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            async with closing(sse_events(raw_bytes(reply))) as events:
                async for event in events:
                    if event.name == "message":
                        yield chunk_bytes(event.data)

    @property
    def filesystem(self) -> AsyncFilesystem:
        """The sandbox's files."""
        return AsyncFilesystem(self._client, self._id)

    @property
    def memory(self) -> AsyncMemorySpace:
        """What the sandbox's agent knows: the agent in its metadata (`agent`), else one named as the sandbox.

        It writes for the machine as it is now: once the machine was put back, ask for `memory` again.
        """
        return AsyncMemorySpace(self._client, sandbox_id=self._id)

    @overload
    async def exec(
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
    async def exec(
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
    ) -> AsyncProcess: ...
    async def exec(
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
    ) -> ExecResult | AsyncProcess:
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
            on_stdout: called with text as it comes, all of it.
            on_stderr: the same for stderr.
            background: return an `AsyncProcess`.

        Raises:
            OperationTimeout: killed at its limit; facts have `stdout` and `stderr` until then.
            CommandFailed: with `check`; facts have exit_code, stdout, stderr.
            CommandLost: its end cannot be known.
            InvalidRequest: no such user, folder or program.
            WrongState: the sandbox is not running.
        """
        check_exec_args(background, stdin)
        body = exec_body(
            command,
            timeout_seconds=timeout_seconds,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            background=background,
        )
        if background:
            return await start_process(self._client, self._id, body)
        watched = on_stdout is not None or on_stderr is not None
        body["output_limit_bytes"] = None if watched else output_limit_bytes
        feed = self._feed(body)
        collector = Collector(output_limit_bytes, on_stdout=on_stdout, on_stderr=on_stderr)
        result = await collect(feed, collector)
        return result.check() if check else result

    def _feed(self, body: dict[str, Any]) -> ExecFeed:
        return ExecFeed(
            self._connection,
            self._id,
            body["exec_id"],
            start=body,
            limit_bytes=body.get("output_limit_bytes"),
        )

    async def exec_stream(
        self,
        command: Command,
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
    ) -> AsyncGenerator[ExecEvent, None]:
        """Run a command and yield `ExecStarted`, `ExecOutput` as it comes, `ExecEnded` last. Raises as `exec`."""
        body = exec_body(
            command, timeout_seconds=timeout_seconds, cwd=cwd, env=env, user=user, stdin=stdin
        )
        async with closing(self._feed(body).events()) as events:
            async for event in events:
                yield event

    async def attach(
        self, exec_id: str, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> AsyncProcess:
        """Return a handle of an exec that was started before, by anyone. Raises `NotFound`."""
        handle = AsyncProcess(
            self._client,
            self._id,
            ExecId(exec_id),
            stdout_offset=stdout_offset,
            stderr_offset=stderr_offset,
        )
        await handle.info()
        return handle

    async def execs(self) -> builtins.list[ExecInfo]:
        """Return the execs that the guest's agent knows, running and ended, oldest first."""
        body = await self._connection.call("GET", f"{self._path}/execs")
        return [exec_info(item) for item in body["items"]]

    async def processes(self) -> builtins.list[ProcessInfo]:
        """Return the guest's processes."""
        body = await self._connection.call("GET", f"{self._path}/processes")
        return [process_info(item) for item in body["items"]]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(NotFound):
            await self.delete()
