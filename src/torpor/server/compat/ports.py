"""/pandastack/v1/sandboxes/{sandbox}/ports: what listens in a machine."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from torpor.server.compat.deps import TheSandbox
from torpor.server.compat.dispatch import PREFIX
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine
from torpor.server.wire import Wire

router = APIRouter(
    prefix=f"{PREFIX}/v1/sandboxes/{{sandbox}}/ports", tags=["pandastack"], responses=FAILURES
)


class PortTold(Wire):
    """One port that a program listens on."""

    port: int
    label: Annotated[str | None, Field(description="The program's name.")]
    listening: bool = True
    source: str = "detected"
    proxy_url: None = None


class PortsTold(Wire):
    """The ports that can be reached from outside, each once."""

    ports: list[PortTold]


@router.get("", response_model=PortsTold)
async def pandastack_list_ports(info: TheSandbox, engine: Engine) -> Reply:
    """List what listens for TCP connections on the machine's loopback or on all its addresses."""
    async with engine.guest(info.id) as guest:
        found = {p.port: p.process for p in await guest.ports() if p.is_reachable}
    return Reply(
        PortsTold(ports=[PortTold(port=port, label=found[port]) for port in sorted(found)])
    )
