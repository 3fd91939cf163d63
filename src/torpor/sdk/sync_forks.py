"""`Sandbox.fork`: the synchronous face of `torpor.sdk.forks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack, overload

from torpor.errors import TorporError
from torpor.model import AgentMemory, Network, OnTimeout
from torpor.model_volumes import VolumesMode
from torpor.sdk import forks
from torpor.sdk.loop import loop_thread
from torpor.sdk.snapshot_results import RestoreOptions

if TYPE_CHECKING:
    from torpor.sdk.sandbox import AsyncSandbox
    from torpor.sdk.snapshots import AsyncSnapshot
    from torpor.sdk.sync_sandbox import Sandbox
    from torpor.sdk.sync_snapshots import Snapshot


@overload
def fork(
    self: Sandbox | Snapshot | str, *, count: None = None, **options: Unpack[RestoreOptions]
) -> Sandbox: ...
@overload
def fork(
    self: Sandbox | Snapshot | str, *, count: int, **options: Unpack[RestoreOptions]
) -> list[Sandbox | TorporError]: ...
def fork(
    self: Sandbox | Snapshot | str,
    *,
    count: int | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    network: Network | None = None,
    ttl_seconds: int | None = None,
    on_timeout: OnTimeout = "delete",
    idle_seconds: int | None = None,
    allow_cold: bool = False,
    agent_memory: AgentMemory | None = None,
    volumes: VolumesMode | None = None,
) -> Sandbox | list[Sandbox | TorporError]:
    """Make new sandboxes that go on where this one is, copy-on-write, each with an identity of its own.

    The source goes on. On the class it takes the id of a sandbox or of a snapshot. With `count` the result
    is a list in which each is a sandbox or its own error; without it one is made and returned.

    Raises:
        NotFound: there is no such sandbox or snapshot.
        WrongState: the sandbox is not running, paused or hibernated.
        GuestFailed, InsufficientResources: no snapshot could be taken; nothing was made.
    """
    from torpor.sdk.sync_sandbox import Sandbox

    if isinstance(self, str):
        source: AsyncSnapshot | AsyncSandbox | str = self
    elif isinstance(self, Sandbox):
        source = self._sandbox
    else:
        source = self._snapshot
    options: RestoreOptions = {
        "env": env,
        "secrets": secrets,
        "metadata": metadata,
        "network": network,
        "ttl_seconds": ttl_seconds,
        "on_timeout": on_timeout,
        "idle_seconds": idle_seconds,
        "allow_cold": allow_cold,
        "agent_memory": agent_memory,
        "volumes": volumes,
    }
    if count is None:
        return Sandbox(loop_thread.run(forks.fork(source, **options)))
    return [
        found if isinstance(found, TorporError) else Sandbox(found)
        for found in loop_thread.run(forks.fork(source, count=count, **options))
    ]
