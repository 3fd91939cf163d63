"""What an asynchronous sandbox can do about its ports: list them, forward one, make a link to one."""

from __future__ import annotations

from torpor.model_ports import PortInfo
from torpor.sdk.dual import dual
from torpor.sdk.forwards import AsyncForward, OnError
from torpor.sdk.handle import AsyncHandle


class AsyncPorts(AsyncHandle):
    """The part of `AsyncSandbox` about ports. All of it also works on the class with an id."""

    @dual
    async def ports(self) -> list[PortInfo]:
        """Return what listens for TCP connections in the machine, by port; one that sleeps is woken.

        Raises:
            WrongState: the sandbox is not running.
            HostNotReady: the agent in the machine is too old.
        """
        body = await self._connection.call("GET", f"{self._path}/ports")
        return [
            PortInfo(
                port=item["port"],
                address=item["address"],
                user=item["user"],
                pid=item["pid"],
                process=item["process"],
            )
            for item in body["ports"]
        ]

    @dual
    def forward(
        self,
        port: int,
        *,
        local_port: int = 0,
        local_host: str = "127.0.0.1",
        idle_seconds: int | None = None,
        on_error: OnError | None = None,
    ) -> AsyncForward:
        """Return a local port whose connections go to `port` in the machine; use it with `async with`.

        It needs no network in the machine. Nothing is asked of the machine before the first connection.

        Args:
            port: in the machine; what listens there has to listen on 127.0.0.1, ::1 or all addresses.
            local_port: here; 0: any that is free, see `AsyncForward.port`.
            local_host: the address to listen on here. Beyond loopback, everybody who reaches it reaches the machine.
            idle_seconds: close a connection on which nothing moves for so long; None: an hour.
            on_error: told why a connection was cut.
        """
        return AsyncForward(
            self._client,
            self._id,
            port,
            local_port=local_port,
            local_host=local_host,
            idle_seconds=idle_seconds,
            on_error=on_error,
        )

    @dual
    async def preview_url(self, port: int, *, ttl_seconds: int = 3600, path: str = "/") -> str:
        """Return a link by which whoever has it may use that port of the machine, for `ttl_seconds`.

        It is `http://PORT-ID.HOST…` on the daemon's TCP address, signed for that sandbox and port; a browser that opens
        it keeps it as a cookie. Opening it wakes the sandbox if it sleeps.

        Raises:
            HostNotReady: the daemon does not listen on TCP, or has no name there.
            InvalidRequest: no such port, or a life beyond 30 days.
        """
        body = {"ttl_seconds": ttl_seconds, "path": path}
        reply = await self._connection.call("POST", f"{self._path}/ports/{port}/links", body=body)
        return str(reply["url"])
