"""The shapes of ports and links to them in JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from torpor.model_access import LINK_SECONDS_MOST
from torpor.model_ports import PortInfo
from torpor.server.wire import Wire


class PortWire(Wire):
    """One program that takes TCP connections in a machine."""

    port: int
    address: str
    user: str
    pid: int | None
    process: str | None
    is_reachable: Annotated[
        bool, Field(description="It listens on loopback or all addresses: it can be forwarded.")
    ]

    @staticmethod
    def of(info: PortInfo) -> PortWire:
        """Return it."""
        return PortWire(
            port=info.port,
            address=info.address,
            user=info.user,
            pid=info.pid,
            process=info.process,
            is_reachable=info.is_reachable,
        )


class PortListWire(Wire):
    """What listens in a machine, by port."""

    ports: list[PortWire]


class LinkRequest(Wire):
    """What a link to a port takes; nothing is needed."""

    ttl_seconds: Annotated[int, Field(ge=1, le=LINK_SECONDS_MOST)] = 3600
    path: Annotated[str, Field(max_length=2000, description="What it opens.")] = "/"


class LinkWire(Wire):
    """A signed link to a preview: whoever has it may use that port until it ends."""

    url: str
    host: Annotated[str, Field(description="The preview's own name.")]
    port: int
    sandbox_id: str
    expires_at: datetime
