"""Which names the daemon answers to on TCP, so that no web page can reach it under a name of its own.

A page at evil.example can let its name point to 127.0.0.1, and its scripts then reach this port with the
page's own origin. They cannot choose the Host header, though: it names evil.example. Addresses are always
right, since a name is needed for that trick.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from torpor.errors import InvalidRequest, NotAllowed


class Hosts:
    """The names that are answered to: `localhost`, every address, and those that are given.

    A name that begins with a dot stands for all names that end with it.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        found = {name.strip().lower().rstrip(".") for name in names}
        self._names = frozenset({"localhost", *found} - {""})
        self._suffixes = tuple(name for name in self._names if name.startswith("."))

    def check(self, host: bytes | None, origin: bytes | None) -> None:
        """Let a request in by its Host and Origin headers.

        Raises:
            InvalidRequest: there is no Host.
            NotAllowed: the Host is not one of ours, or a web page from elsewhere asks.
        """
        if host is None:
            raise InvalidRequest("a Host header is needed", hint="send HTTP/1.1 with a Host")
        name = name_of(host)
        if not self._is_ours(name):
            raise NotAllowed(
                f"this daemon does not answer to the name {name[:80]!r}",
                hint="use its address, or start it with --allow-host NAME",
            )
        if origin is not None and not is_origin_of(origin, host):
            raise NotAllowed(
                "web pages from elsewhere may not ask this daemon", hint="ask it from a program"
            )

    def answers_below(self, name: str) -> bool:
        """Return whether names directly below `name` (no address) are for previews."""
        return name in self._names or f".{name}".endswith(self._suffixes or ("\0",))

    def _is_ours(self, name: str) -> bool:
        if name in self._names or name.endswith(self._suffixes or ("\0",)):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def is_origin_of(origin: bytes, host: bytes) -> bool:
    """Return whether a page that came from `host` says `origin`; one that is no URL is from elsewhere."""
    try:
        return urlsplit(_text(origin)).netloc.lower() == _text(host).strip().lower()
    except ValueError:
        return False


def _text(raw: bytes) -> str:
    return raw.decode("latin-1")


def name_of(host: bytes) -> str:
    """Return the name in a Host header, without the port and brackets."""
    text = _text(host).strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0].rstrip(".") if ":" in text else text.rstrip(".")
