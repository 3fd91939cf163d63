"""`AsyncSandbox.fork`: one sandbox or snapshot becomes several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack, overload

from torpor.base.ids import is_id
from torpor.errors import TorporError, error_from_wire
from torpor.model import AgentMemory, Network, OnTimeout
from torpor.model_volumes import VolumesMode
from torpor.sdk.client import Client, connection, quote_part
from torpor.sdk.parse import sandbox_info
from torpor.sdk.snapshot_results import LIFE_LIMIT_S, RestoreOptions, restore_body

if TYPE_CHECKING:
    from torpor.sdk.sandbox import AsyncSandbox
    from torpor.sdk.snapshots import AsyncSnapshot


@overload
async def fork(
    self: AsyncSandbox | AsyncSnapshot | str,
    *,
    count: None = None,
    **options: Unpack[RestoreOptions],
) -> AsyncSandbox: ...
@overload
async def fork(
    self: AsyncSandbox | AsyncSnapshot | str, *, count: int, **options: Unpack[RestoreOptions]
) -> list[AsyncSandbox | TorporError]: ...
async def fork(
    self: AsyncSandbox | AsyncSnapshot | str,
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
) -> AsyncSandbox | list[AsyncSandbox | TorporError]:
    """Make new sandboxes that go on where this one is, copy-on-write, each with an identity of its own.

    The source goes on. On the class it takes the id of a sandbox or of a snapshot.
    What a machine did to the outside world is not done again, and not undone, for its forks.

    Args:
        count: how many (1 to 100); the result is then a list in which each is a sandbox or its own error.
            None: one, which is returned or whose error is raised.
        env: laid over the source's environment.
        secrets: the same; for values that are secret. They are in the fork, and so in its snapshots.
        metadata: labels; `fork_tree_id` and `fork_parent_id` are added, and tell which are siblings.
        network: `user` or `none`; None: the source's.
        ttl_seconds: seconds until `on_timeout` happens; None: never.
        on_timeout: `delete` or `hibernate`.
        idle_seconds: hibernate by itself after so long without work; None: never.
        allow_cold: start from the disk alone if the RAM cannot go on here; `info.boot_mode` says so.
        agent_memory: how its agent's memory goes on (`reconcile`, `rewind`, `keep`); None: of a fork as it was
            there, else `reconcile`.
        volumes: what becomes of the snapshot's volumes: `include` (clones), `detach` or `keep-current`;
            None: as it was taken.

    Raises:
        NotFound: there is no such sandbox or snapshot.
        WrongState: the sandbox is not running, paused or hibernated.
        GuestFailed, InsufficientResources: as `snapshot`; nothing was made.
    """
    from torpor.sdk.sandbox import AsyncSandbox

    source = AsyncSandbox.handle(self) if isinstance(self, str) else self
    body = restore_body(
        env=env,
        secrets=secrets,
        metadata=metadata,
        network=network,
        ttl_seconds=ttl_seconds,
        on_timeout=on_timeout,
        idle_seconds=idle_seconds,
        allow_cold=allow_cold,
        agent_memory=agent_memory,
        volumes=volumes,
    )
    return await fork_from(source.id, count, body, source._client)


async def fork_from(
    source_id: str, count: int | None, body: Mapping[str, object], client: Client
) -> AsyncSandbox | list[AsyncSandbox | TorporError]:
    """Fork what has an id, a sandbox or a snapshot; see `fork`."""
    from torpor.sdk.sandbox import AsyncSandbox

    noun = "snapshots" if is_id(source_id, "snap") else "sandboxes"
    answer = await connection(client).call_once(
        f"/v1/{noun}/{quote_part(source_id)}/fork",
        body={**body, "count": count},
        limit_s=LIFE_LIMIT_S,
    )
    found: list[AsyncSandbox | TorporError] = []
    for result in answer["results"]:
        if "sandbox" in result:
            info = sandbox_info(result["sandbox"])
            found.append(AsyncSandbox(info.id, info, client))
        else:
            found.append(error_from_wire(result["error"]))
    if count is not None:
        return found
    if isinstance(found[0], TorporError):
        raise found[0]
    return found[0]
