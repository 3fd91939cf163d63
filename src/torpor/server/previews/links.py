"""Where previews can be seen, and the links to them."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from starlette.requests import HTTPConnection

from torpor.access.opening import Access
from torpor.errors import HostNotReady, InvalidRequest
from torpor.server.hosts import name_of
from torpor.server.previews.door import COOKIE
from torpor.server.previews.names import Target, label_of

_LOCAL: Final = "localhost"


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP address that the daemon answers on."""

    host: str
    port: int
    names: tuple[str, ...]


class Listeners:
    """The daemon's TCP listeners, the newest last."""

    def __init__(self) -> None:
        self._now: list[Listener] = []

    @contextlib.contextmanager
    def noted(self, host: str, port: int, names: Sequence[str]) -> Iterator[None]:
        """Know of a listener while the context lasts."""
        listener = Listener(host, port, tuple(names))
        self._now.append(listener)
        try:
            yield
        finally:
            self._now.remove(listener)

    def base(self, connection: HTTPConnection) -> str:
        """Return `NAME[:PORT]` below which whoever asks sees previews.

        Raises:
            HostNotReady: there is no listener, or none that has a name.
        """
        if connection.client is not None:  # by TCP: where they came is right for them
            host = connection.headers.get("host", "").encode("latin-1")
            name = name_of(host)
            port = _port_in(host)
            if not _is_address(name):
                return name + port
            known = next((one for one in reversed(self._now) if f":{one.port}" == port), None)
            return (_named(name, known.names if known else ())) + port
        for listener in reversed(self._now):
            with contextlib.suppress(HostNotReady):
                return f"{_named(listener.host, listener.names)}:{listener.port}"
        if self._now:
            return f"{_named(self._now[-1].host, ())}:{self._now[-1].port}"
        raise HostNotReady(
            "the daemon does not listen on TCP, so no browser can see a preview",
            hint="torpor serve --host 127.0.0.1 --port 8080",
        )


def _named(host: str, names: Sequence[str]) -> str:
    """Return the name for a listener's previews: one that it was given, else `localhost`."""
    given = next((name.lstrip(".") for name in names if name.strip(".")), None)
    if given is not None:
        return given.lower()
    if not _is_address(host):
        return host.lower()
    address = ipaddress.ip_address(host)
    if address.is_loopback or address.is_unspecified:
        return _LOCAL
    raise HostNotReady(
        f"previews need a name, and {host} is an address: nothing is below it",
        hint="start the daemon with --allow-host NAME, where *.NAME points to it",
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _port_in(host: bytes) -> str:
    text = host.decode("latin-1").strip()
    _, _, port = text.rpartition("]")[2].rpartition(":")
    return f":{port}" if port.isdigit() and ":" in text.rpartition("]")[2] else ""


@dataclass(frozen=True, slots=True)
class Link:
    """A signed link."""

    url: str
    """Opens the preview, and has the signature."""
    host: str
    """The preview's own name, for a Host header."""
    expires_at: datetime


def make_link(
    access: Access, target: Target, base: str, *, scheme: str, path: str, ttl_seconds: int
) -> Link:
    """Return a link to a port.

    Raises:
        InvalidRequest: it would live too long, or the path is none.
    """
    if not path.startswith("/") or path.startswith("//") or not path.isprintable():
        raise InvalidRequest(f"{path[:100]!r} is no path", hint="such as /docs?page=1")
    signed = access.links.sign(
        target.sandbox_id,
        target.port,
        now=access.clock.now().timestamp(),
        ttl_seconds=ttl_seconds,
    )
    before, mark, fragment = path.partition("#")
    place, question, query = before.partition("?")
    asked = f"{query}&" if question and query else ""
    host = f"{label_of(target)}.{base}"
    safe = quote(place, safe="/%:@!$&'()*+,;=~-._")
    return Link(
        url=f"{scheme}://{host}{safe}?{asked}{COOKIE}={signed}{mark}{fragment}",
        host=host,
        expires_at=datetime.fromtimestamp(int(signed.partition(".")[0]), UTC),
    )
