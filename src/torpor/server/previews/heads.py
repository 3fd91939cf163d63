"""What of a request's and an answer's headers goes on through a preview."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from starlette.types import Scope

from torpor.server.previews.door import COOKIE, Pairs, Pass

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_OURS: Final = frozenset(
    {
        b"expect",
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-real-ip",
    }
)
"""Said by us alone: a client's word for where it comes from is not believed."""
_END_TO_END: Final = frozenset({b"content-length", b"host"})
"""Never between neighbours only, whatever `Connection` says: a request does without neither."""
_OUR_COOKIE: Final = re.compile(rb"[=\s]*" + re.escape(COOKIE.encode()) + rb"\s*([=;]|$)")
"""Also as the value of a cookie without a name, which browsers send back as if it were one with that name."""
_DOMAIN: Final = re.compile(rb";\s*domain\s*(=[^;]*)?(?=;|$)", re.IGNORECASE)


def without_hops(headers: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """Return the headers that are not between neighbours only; `Connection` may name more of those."""
    found = list(headers)
    named = {
        word.strip().lower()
        for name, value in found
        if name == b"connection"
        for word in value.split(b",")
    } - _END_TO_END
    return [pair for pair in found if pair[0] not in _HOP_BY_HOP and pair[0] not in named]


def request_headers(scope: Scope, admitted: Pass, *, is_upgrade: bool) -> Pairs:
    """Return what the program in the machine gets."""
    headers = [pair for pair in without_hops(admitted.headers) if pair[0] not in _OURS]
    said = dict(scope["headers"])
    host = said.get(b"host", b"")
    client = scope.get("client")
    headers += [
        (b"x-forwarded-for", str(client[0] if client else "").encode("latin-1")),
        (b"x-forwarded-host", host),
        (b"x-forwarded-proto", scheme_of(scope).encode("ascii")),
    ]
    if is_upgrade:
        return [*headers, (b"connection", b"Upgrade"), (b"upgrade", said.get(b"upgrade", b""))]
    if b"transfer-encoding" in said:
        headers = [pair for pair in headers if pair[0] != b"content-length"]
        headers.append((b"transfer-encoding", b"chunked"))
    return [*headers, (b"connection", b"close")]


def answer_headers(headers: Iterable[tuple[bytes, bytes]], admitted: Pass, scope: Scope) -> Pairs:
    """Return what the browser gets: cookies of that very name only, and ours if it came with a link."""
    found: Pairs = []
    for name, value in without_hops((name.lower(), value) for name, value in headers):
        if name != b"set-cookie":
            found.append((name, value))
        elif not _OUR_COOKIE.match(value):
            found.append((name, _DOMAIN.sub(b"", value)))
    return [*found, *cookie_of(admitted, scope)]


def cookie_of(admitted: Pass, scope: Scope) -> Pairs:
    """Return the header that keeps a link as a cookie, if the request came with one."""
    if admitted.link is None:
        return []
    secure = "; Secure" if scheme_of(scope) == "https" else ""
    text = f"{COOKIE}={admitted.link}; Path=/; HttpOnly; SameSite=Lax{secure}"
    return [(b"set-cookie", text.encode("ascii"))]


def scheme_of(scope: Scope) -> str:
    """Return how the browser came, as a proxy before us says it."""
    said = dict(scope["headers"]).get(b"x-forwarded-proto", b"")
    return "https" if said == b"https" or scope.get("scheme") in ("https", "wss") else "http"


def path_of(scope: Scope, query: bytes) -> bytes:
    """Return what stands in the request line."""
    raw = scope.get("raw_path") or scope["path"].encode("utf-8")
    path = bytes(raw)
    return path + b"?" + query if query else path
