"""Spellings that E2B's users know, for what `AsyncSandbox` has under names of its own. They say the same."""

from __future__ import annotations

import contextlib
import ipaddress
from datetime import UTC, datetime
from typing import Self
from urllib.parse import urlsplit

from torpor.errors import HostNotReady, InvalidRequest
from torpor.model import SandboxInfo, SandboxState
from torpor.sdk.client import connection
from torpor.sdk.dual import dual, dual_async_self
from torpor.sdk.familiar_commands import AsyncCommands
from torpor.sdk.familiar_files import AsyncFiles
from torpor.sdk.handle import AsyncHandle
from torpor.sdk.parse import sandbox_info
from torpor.sdk.snapshot_results import LIFE_LIMIT_S


class AsyncFamiliar(AsyncHandle):
    """The part of `AsyncSandbox` with the names of others. docs/reference/mapping.md has the whole table."""

    @property
    def commands(self) -> AsyncCommands:
        """Commands: `run`, `list`, `kill`, `connect`, `send_stdin`."""
        return AsyncCommands(self._client, self._id)

    @property
    def files(self) -> AsyncFiles:
        """Files: `read`, `write`, `list`, `exists`, `get_info`, `remove`, `rename`, `make_dir`."""
        return AsyncFiles(self._client, self._id)

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id."""
        return self._id

    @dual
    async def get_info(self) -> SandboxInfo:
        """Ask what is so about the sandbox, and return it: `refresh`. Raises `NotFound`."""
        self._info = sandbox_info(await self._connection.call("GET", self._path))
        return self._info

    @dual
    async def is_running(self) -> bool:
        """Return whether the sandbox runs now. Raises `NotFound`."""
        return (await self.get_info()).state is SandboxState.RUNNING

    @dual
    async def set_timeout(self, timeout: int) -> None:
        """Let the sandbox end `timeout` seconds from now: `set_ttl`."""
        body = {"ttl_seconds": timeout, "on_timeout": None}
        await self._connection.call("PATCH", f"{self._path}/lifecycle", body=body)

    def get_host(self, port: int) -> str:
        """Return the name (`PORT-ID.HOST`, with the daemon's port) under which HTTP reaches a port of the sandbox.

        Whoever asks there needs a token of the daemon's (header `X-Torpor-Token`); `preview_url` is a link that needs none.

        Raises:
            InvalidRequest: there is no such port.
            HostNotReady: this client talks to the daemon by a Unix socket, or by an address below which nothing has a name.
        """
        return preview_host(self._client.url, self._id, port)

    @dual_async_self
    async def connect(self, timeout: int | None = None) -> Self:
        """Return the sandbox running: one that is paused goes on, one that hibernates is woken.

        Args:
            timeout: let it run at least so many seconds from now. A longer lease, or none, stays as it is.

        Raises:
            NotFound: there is no such sandbox.
            WrongState: it is neither running nor can be made to.
        """
        info = await self.get_info()
        action = {SandboxState.PAUSED: "resume", SandboxState.HIBERNATED: "wake"}.get(info.state)
        if action is not None:
            await connection(self._client).call(
                "POST", f"{self._path}/{action}", limit_s=LIFE_LIMIT_S
            )
            info = await self.get_info()
        if timeout is not None and ends_before(info, timeout):
            await self.set_timeout(timeout)
            await self.get_info()
        return self


def preview_host(url: str | None, sandbox_id: str, port: int) -> str:
    """Return the name of a port's preview on the daemon at `url`. Raises `InvalidRequest`, `HostNotReady`."""
    if not 0 < port < 65536:
        raise InvalidRequest(f"port {port} is not between 1 and 65535")
    found = urlsplit(url or "")
    if found.scheme not in ("http", "https") or not found.hostname:
        raise HostNotReady(
            "this client talks to the daemon by a Unix socket, where a port has no name",
            hint="set TORPOR_URL to its TCP address, or use preview_url or forward",
        )
    name = found.hostname
    with contextlib.suppress(ValueError):
        if not ipaddress.ip_address(name).is_loopback:
            raise HostNotReady(
                f"nothing has a name below the address {name}",
                hint="let TORPOR_URL hold a name (torpor serve --allow-host NAME), or use forward",
            )
        name = "localhost"
    return f"{port}-{sandbox_id}.{name}{'' if found.port is None else f':{found.port}'}"


def ends_before(info: SandboxInfo, seconds: float) -> bool:
    """Return whether a sandbox's lease is over in less than `seconds` of running."""
    if info.expires_at is not None:
        return (info.expires_at - datetime.now(UTC)).total_seconds() < seconds
    return info.ttl_left_seconds is not None and info.ttl_left_seconds < seconds
