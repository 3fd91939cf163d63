"""/v1/sandboxes/{id}/ports…: what listens in a machine, connections to it, and links to its previews."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request, WebSocket

from torpor.access.opening import Access
from torpor.errors import HostNotReady, InvalidRequest
from torpor.guest.ports import check_port
from torpor.model import SandboxId
from torpor.server.carry import IDLE_MOST_S, IDLE_S
from torpor.server.guard import view_of
from torpor.server.previews.heads import scheme_of
from torpor.server.previews.links import Listeners, make_link
from torpor.server.previews.names import Target
from torpor.server.replies import Reply
from torpor.server.routes.deps import FAILURES, Engine
from torpor.server.tunnels import DONE, tell_failure, tunnel
from torpor.server.wire_ports import LinkRequest, LinkWire, PortListWire, PortWire

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/ports", tags=["ports"], responses=FAILURES)


@router.get("", response_model=PortListWire)
async def list_ports(sandbox_id: str, engine: Engine) -> Reply:
    """List what listens for TCP connections in the machine, by port."""
    async with engine.guest(SandboxId(sandbox_id)) as guest:
        found = await guest.ports()
    return Reply(PortListWire(ports=[PortWire.of(info) for info in found]))


@router.post("/{port}/links", response_model=LinkWire, status_code=201)
async def make_preview_link(
    sandbox_id: str, port: int, body: LinkRequest, engine: Engine, request: Request
) -> Reply:
    """Make a link by which whoever has it may use that port for a while, through its preview."""
    check_port(port)
    info = await engine.get(SandboxId(sandbox_id))
    access: Access | None = request.app.state.access
    if access is None:
        raise HostNotReady("this daemon has no key for links", hint="start it anew")
    target = Target(info.id, port)
    link = make_link(
        access,
        target,
        cast(Listeners, request.app.state.listeners).base(request),
        scheme=scheme_of(request.scope),
        path=body.path,
        ttl_seconds=body.ttl_seconds,
    )
    return Reply(
        LinkWire(
            url=link.url,
            host=link.host,
            port=port,
            sandbox_id=info.id,
            expires_at=link.expires_at,
        ),
        201,
    )


@router.websocket("/{port}/tunnel")
async def open_tunnel(websocket: WebSocket, sandbox_id: str, port: str) -> None:
    """Carry raw bytes to a port of the machine's loopback; one that sleeps is woken."""
    try:
        number, idle_s = _number(port, "port"), _idle_s(websocket.query_params.get("idle_seconds"))
        check_port(number)
        async with (
            view_of(websocket).guest(SandboxId(sandbox_id)) as guest,
            guest.open_port(number) as stream,
        ):
            await websocket.accept()
            await tunnel(websocket, stream, idle_s=idle_s)
        await websocket.close(DONE)
    except Exception as exc:  # noqa: BLE001 - whatever it was, the client is told
        await tell_failure(websocket, exc)


def _number(text: str, what: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise InvalidRequest(f"{text[:50]!r} is no {what}", hint="a whole number")
    return int(text)


def _idle_s(text: str | None) -> float:
    if text is None:
        return IDLE_S
    found = _number(text, "number of seconds")
    if not 1 <= found <= IDLE_MOST_S:
        raise InvalidRequest(f"idle_seconds is {found}; 1 to {IDLE_MOST_S:g} is wanted")
    return float(found)
