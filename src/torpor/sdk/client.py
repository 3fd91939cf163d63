"""One connection to a daemon: requests, streams, errors, and what may be sent again.

A request is sent again if nothing of it can have been sent, because the connection could not be made; or if it
has a key by which the daemon knows it again, so that it is carried out once (`call_once`). What else can be
lost after that is told apart by the caller (`execs.py` attaches again).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from torpor import __version__
from torpor.base.aio import closing
from torpor.base.home import Home
from torpor.errors import (
    Busy,
    DaemonUnreachable,
    InvalidRequest,
    OperationTimeout,
    TorporError,
    error_from_wire,
)
from torpor.sdk.daemon import ensure_daemon

REQUEST_LIMIT_S = 60.0
"""Seconds of silence after which an ordinary request is given up."""

STREAM_SILENCE_S = 35.0
"""The same for a stream, on which the daemon sends something every 10 seconds."""

RETRY_LIMIT_S = 60.0
"""Seconds for which a request that was lost on the way is sent again, where that does no harm."""

_CONNECT_LIMIT_S = 10.0

Query = Mapping[str, object] | Sequence[tuple[str, str]]


class VersionSkew(UserWarning):
    """The running daemon is of another version than this client."""


class ConnectionLost(DaemonUnreachable):
    """Raised when a connection broke after the request was sent; whether it was carried out is not known."""


class DaemonSilent(OperationTimeout):
    """Raised when the daemon sent nothing for too long; whether the request was carried out is not known."""


@dataclass(frozen=True, slots=True)
class Client:
    """Which daemon to talk to.

    Without arguments: `TORPOR_URL` (with `TORPOR_TOKEN`) if it is set, else the Unix socket in
    `TORPOR_HOME`, where a daemon is started if none answers.
    """

    url: str | None = None
    """`http://host:port`, `https://…` or `unix:///path`; None: as the environment says."""
    token: str | None = field(default=None, repr=False)
    home: Path | None = None
    """The home of a local daemon; None: as the environment says."""

    def resolved(self) -> Client:
        """Return the same with the environment read."""
        if self.home is not None:
            return self
        url = self.url or os.environ.get("TORPOR_URL")
        if url:
            return Client(url=url, token=self.token or os.environ.get("TORPOR_TOKEN"))
        return Client(home=Home.default().root)


class Connection:
    """Talks to one daemon from one event loop."""

    def __init__(self, client: Client) -> None:
        self._home: Home | None = None
        self._dir_fd: int | None = None
        self._warned = False
        self.daemon_pid: str | None = None
        """Process id of the daemon that answered last."""
        self.uds: str | None = None
        """The Unix socket that is connected to; None: TCP."""
        headers = {"user-agent": f"torpor-python/{__version__}"}
        if client.token:
            headers["authorization"] = f"Bearer {client.token}"
        self.headers = headers
        self._http = httpx.AsyncClient(
            transport=self._transport(client),
            base_url=self._base,
            headers=headers,
            timeout=httpx.Timeout(REQUEST_LIMIT_S, connect=_CONNECT_LIMIT_S, pool=None),
            trust_env=False,
        )

    def _transport(self, client: Client) -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=16, keepalive_expiry=30
        )
        if client.url and not client.url.startswith("unix://"):
            self._base = client.url.rstrip("/")
            if not self._base.startswith(("http://", "https://")):
                raise InvalidRequest(
                    f"{client.url!r} is not a URL of a daemon",
                    hint="TORPOR_URL is http://HOST:PORT, https://… or unix:///PATH",
                )
            url = httpx.URL(self._base)
            self._where = f"{url.scheme}://{url.netloc.decode()}"  # a password in it is not shown
            return httpx.AsyncHTTPTransport(limits=limits)
        self._base = "http://torpor"
        if client.url:
            path = Path(client.url.removeprefix("unix://"))
        else:
            assert client.home is not None
            self._home = Home(client.home)
            path = self._home.socket
        self.uds = self._short(path)
        self._where = f"unix://{path}"
        return httpx.AsyncHTTPTransport(uds=self.uds, limits=limits)

    def _short(self, path: Path) -> str:
        """Return a name for the socket at `path` that fits the kernel's limit."""
        if len(os.fsencode(path)) < 100:
            return str(path)
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True)
        self._dir_fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._dir_fd}/{path.name}"

    def address(self, path: str, query: Query = ()) -> str:
        """Return the URL of a path."""
        return self._base + path + _query(query)

    async def ensure_daemon(self) -> bool:
        """Start the daemon of a local home if it is not there; return False if that is not ours to do."""
        if self._home is None:
            return False
        await asyncio.to_thread(ensure_daemon, self._home)
        return True

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()
        if self._dir_fd is not None:
            os.close(self._dir_fd)
            self._dir_fd = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: object = None,
        content: AsyncIterator[bytes] | bytes | None = None,
        limit_s: float = REQUEST_LIMIT_S,
        key: str | None = None,
    ) -> Any:
        """Send a request and return its JSON reply; None for an empty one.

        Raises:
            TorporError: what the daemon answered, as the class it was there.
            DaemonUnreachable: no daemon answers and none could be started.
            ConnectionLost: the connection broke after the request was sent.
            DaemonSilent: no answer for `limit_s` seconds.
        """
        async with self.stream(
            method, path, query=query, body=body, content=content, limit_s=limit_s, key=key
        ) as reply:
            with _errors(method, path, limit_s):
                data = await reply.aread()
        return json.loads(data) if data else None

    async def call_once(self, path: str, *, body: object = None, limit_s: float) -> Any:
        """POST what makes something, with a key, and return its JSON reply. Raises as `call`.

        A connection that breaks after the request was sent is made again, and the request sent again: it is carried
        out once, however often it arrives.
        """
        key = secrets.token_urlsafe(24)
        gives_up_at = time.monotonic() + RETRY_LIMIT_S
        pause_s = 0.1
        was_lost = False
        while True:
            try:
                return await self.call("POST", path, body=body, limit_s=limit_s, key=key)
            except (ConnectionLost, DaemonUnreachable, Busy) as error:
                was_lost = was_lost or isinstance(error, ConnectionLost)
                if not was_lost or time.monotonic() > gives_up_at:
                    raise  # nothing was sent before, so nothing is under way
            await asyncio.sleep(pause_s)
            pause_s = min(2.0, pause_s * 2)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: object = None,
        content: AsyncIterator[bytes] | bytes | None = None,
        limit_s: float = STREAM_SILENCE_S,
        key: str | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and enter with its reply, whose body is not yet read. Raises as `call`."""
        headers = {} if key is None else {"idempotency-key": key}
        if body is not None:
            content = json.dumps(body, ensure_ascii=True).encode("ascii")
            headers["content-type"] = "application/json"
        elif content is not None:
            headers["content-type"] = "application/octet-stream"
        request = self._http.build_request(
            method,
            self.address(path, query),
            content=content,
            headers=headers,
            timeout=httpx.Timeout(limit_s, connect=_CONNECT_LIMIT_S, pool=None),
        )
        reply = await self._send(request, limit_s)
        try:
            self._look_at(reply)
            if reply.status_code >= 400:
                with _errors(method, path, limit_s):
                    raise failure_of(reply.status_code, await reply.aread())
            yield reply
        finally:
            await reply.aclose()

    async def _send(self, request: httpx.Request, limit_s: float) -> httpx.Response:
        with _errors(request.method, request.url.path, limit_s, self._where):
            try:
                return await self._http.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if not await self.ensure_daemon():
                    raise
                return await self._http.send(request, stream=True)

    def _look_at(self, reply: httpx.Response) -> None:
        """Note which daemon this is, and say so once if it is of another version."""
        self.daemon_pid = reply.headers.get("x-torpor-pid")
        version = reply.headers.get("x-torpor-version")
        if version != __version__ and not self._warned:
            self._warned = True
            warnings.warn(
                f"the running daemon (process {self.daemon_pid}) is version {version or 'unknown'}, "
                f"this client is {__version__}; end the daemon and the next call starts the right "
                "one: its machines run on",
                VersionSkew,
                stacklevel=2,
            )


async def raw_bytes(
    reply: httpx.Response, *, limit_s: float = STREAM_SILENCE_S
) -> AsyncGenerator[bytes, None]:
    """Yield the body of `reply` as it comes. Raises as `Connection.call`."""
    with _errors(reply.request.method, reply.request.url.path, limit_s):
        async with closing(reply.aiter_raw()) as chunks:
            async for chunk in chunks:
                yield chunk


def resolved(client: Client | None) -> Client:
    """Return which daemon is meant, with the environment read now and not again later."""
    return (client or Client()).resolved()


def quote_part(text: str) -> str:
    """Return `text`, which may carry raw bytes as surrogates, percent-encoded for a URL."""
    return quote(text.encode("utf-8", "surrogateescape"), safe="")


def _query(query: Query) -> str:
    pairs = query.items() if isinstance(query, Mapping) else query
    parts = [
        f"{quote_part(name)}={quote_part(_text(value))}"
        for name, value in pairs
        if value is not None
    ]
    return f"?{'&'.join(parts)}" if parts else ""


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def _errors(method: str, path: str, limit_s: float, where: str = "the daemon") -> Any:
    """Turn what httpx raises into errors of ours."""
    what = f"{method} {path}"
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
        raise DaemonUnreachable(
            f"no daemon answers at {where}: {str(exc) or type(exc).__name__}",
            hint="is TORPOR_URL or TORPOR_HOME right? `torpor serve` starts a daemon",
        ) from exc
    except httpx.TimeoutException as exc:
        raise DaemonSilent(
            f"{what}: the daemon was silent for {limit_s:g} s", hint="see the daemon's log"
        ) from exc
    except httpx.TransportError as exc:
        raise ConnectionLost(
            f"{what}: the connection to the daemon broke: {str(exc) or type(exc).__name__}",
            hint="whether the request was carried out is not known",
        ) from exc


def failure_of(status: int, data: bytes) -> TorporError:
    """Return the error that an answer says."""
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    if isinstance(body, dict) and "error" in body:
        return error_from_wire(body)
    return TorporError(
        f"the daemon answered {status} without a reason",
        hint="is TORPOR_URL the address of a Torpor daemon?",
    )


_connections: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[Client, tuple[Connection, AsyncGenerator[None, None]]]
] = weakref.WeakKeyDictionary()


def connection(client: Client | None) -> Connection:
    """Return the running event loop's connection to `client`'s daemon; it is closed with the loop."""
    wanted = resolved(client)
    found = _connections.setdefault(asyncio.get_running_loop(), {})
    if wanted not in found:
        made = Connection(wanted)
        closer = _closed_with_the_loop(made)
        found[wanted] = (made, closer)
        with contextlib.suppress(StopIteration):
            closer.__anext__().send(None)  # to its `yield`, which awaits nothing before it
    return found[wanted][0]


async def _closed_with_the_loop(made: Connection) -> AsyncGenerator[None, None]:
    """Wait to be closed, which `asyncio.run` does to all generators before it closes its loop."""
    try:
        yield
    finally:
        await made.aclose()
