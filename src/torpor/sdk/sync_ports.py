"""The synchronous face of ports; `torpor.sdk.ports` says what each call does."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from typing_extensions import override

from torpor.model_ports import PortInfo
from torpor.sdk.dual import dual
from torpor.sdk.forwards import AsyncForward, OnError
from torpor.sdk.loop import loop_thread
from torpor.sdk.sync_handle import Handle


class Forward:
    """One forwarded port; as a context manager it listens until the end. See `AsyncForward`."""

    def __init__(self, forward: AsyncForward) -> None:
        self._forward = forward

    @override
    def __repr__(self) -> str:
        return repr(self._forward).replace("AsyncForward", "Forward")

    @property
    def host(self) -> str:
        """Where it listens here."""
        return self._forward.host

    @property
    def port(self) -> int:
        """The local port."""
        return self._forward.port

    @property
    def remote_port(self) -> int:
        """The port in the sandbox."""
        return self._forward.remote_port

    @property
    def address(self) -> str:
        """`HOST:PORT`, to connect to."""
        return self._forward.address

    @property
    def url(self) -> str:
        """The same as a URL."""
        return self._forward.url

    def start(self) -> None:
        """Begin to listen. Raises `NotFound` and `Conflict`."""
        loop_thread.run(self._forward.start())

    def close(self) -> None:
        """Stop listening, and cut what is open."""
        loop_thread.run(self._forward.aclose())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Ports(Handle):
    """The part of `Sandbox` about ports. All of it also works on the class with an id."""

    @dual
    def ports(self) -> list[PortInfo]:
        """Return what listens for TCP connections in the machine, by port; one that sleeps is woken."""
        return loop_thread.run(self._sandbox.ports())

    @dual
    def forward(
        self,
        port: int,
        *,
        local_port: int = 0,
        local_host: str = "127.0.0.1",
        idle_seconds: int | None = None,
        on_error: OnError | None = None,
    ) -> Forward:
        """Return a local port whose connections go to `port` in the machine; use it with `with`.

        `on_error` is called in a thread of the SDK's.
        """
        return Forward(
            self._sandbox.forward(
                port,
                local_port=local_port,
                local_host=local_host,
                idle_seconds=idle_seconds,
                on_error=on_error,
            )
        )

    @dual
    def preview_url(self, port: int, *, ttl_seconds: int = 3600, path: str = "/") -> str:
        """Return a link by which whoever has it may use that port of the machine, for `ttl_seconds`."""
        return loop_thread.run(self._sandbox.preview_url(port, ttl_seconds=ttl_seconds, path=path))
