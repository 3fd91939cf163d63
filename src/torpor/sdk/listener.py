"""Asks the daemon that runs already to listen on TCP too, for as long as somebody waits here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torpor.base.aio import closing
from torpor.errors import DaemonUnreachable, NotFound, TorporError, error_from_wire
from torpor.sdk.client import Client, ConnectionLost, connection, raw_bytes
from torpor.sdk.sse import sse_events


async def listen_until_end(
    client: Client,
    host: str,
    port: int,
    allowed_hosts: Sequence[str],
    on_listening: Callable[[str, int], None],
) -> None:
    """Have the daemon of `client` listen on TCP until this is cancelled; call `on_listening` once it does.

    Raises:
        Conflict: the port is taken.
        DaemonUnreachable: the daemon ended.
    """
    body = {"host": host, "port": port, "allowed_hosts": list(allowed_hosts)}
    try:
        async with (
            connection(client).stream("POST", "/v1/listeners", body=body) as reply,
            closing(sse_events(raw_bytes(reply))) as events,
        ):
            async for event in events:
                if event.name == "listening":
                    on_listening(event.data["host"], event.data["port"])
                elif event.name == "error":
                    raise error_from_wire(event.data)
    except NotFound as exc:
        raise TorporError(
            "the daemon that runs cannot be asked to listen on TCP: it is of an older version",
            hint="end it, then run this again: its machines run on",
        ) from exc
    except ConnectionLost:
        pass  # it ended
    raise DaemonUnreachable("the daemon ended", hint="run this again to start another")
