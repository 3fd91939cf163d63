"""Who may see a preview: the holder of a token of its workspace, or of a link to that very port.

A link comes in the query once; the browser gets it as a cookie of that one name. As other sandboxes' previews are
neighbours whose pages nobody trusts, a request with the cookie counts only if no other page made it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote_plus

from starlette.types import Scope

from torpor.access.opening import Access
from torpor.access.principal import HOST, Principal
from torpor.access.tokens import PREFIX
from torpor.errors import NotAllowed, NotAuthenticated
from torpor.model_access import Scope as Powers
from torpor.server import limits
from torpor.server.hosts import is_origin_of
from torpor.server.previews.names import Target

COOKIE: Final = "torpor_preview"
"""Name of the cookie, and of the parameter in a link."""
TOKEN_HEADER: Final = b"x-torpor-token"

Pairs = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Pass:
    """Who was let in, and what of the request the machine may see."""

    principal: Principal
    headers: Pairs
    """Without what let them in."""
    query: bytes
    link: str | None = None
    """What came in the query, to be kept as a cookie."""
    ends: int = 0
    """The second at which the link ends."""


class PreviewDoor:
    """Lets requests in to previews of one listener."""

    def __init__(
        self,
        access: Access,
        *,
        per_s: float = limits.REQUESTS_PER_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._requests = limits.Buckets(per_s, per_s * limits.BURST_S, now_s)
        self._failures = limits.Buckets(limits.FAILURES_PER_S, limits.FAILURES_BURST, now_s)

    def admit(self, scope: Scope, target: Target) -> Pass:
        """Return who asks.

        Raises:
            NotAuthenticated: there is neither a token nor a link that counts here.
            NotAllowed: a page from elsewhere asks with our cookie, or the token's scope is not enough.
            RateLimited: too often.
        """
        address = str(scope["client"][0]) if scope.get("client") else ""
        self._failures.check(address)
        try:
            found = self._found(scope, target)
        except NotAuthenticated:
            if not _is_made_elsewhere(scope):  # a page must not shut out the people at its address
                self._failures.take(address)
            raise
        if found is None:
            raise NotAuthenticated(
                "a preview needs a link or a token",
                hint="make a link: torpor preview SANDBOX PORT; or send the header X-Torpor-Token: TOKEN",
            )
        self._requests.take(f"{target.sandbox_id}/{target.port}")
        return found

    def _found(self, scope: Scope, target: Target) -> Pass | None:
        """Return who shows something that counts here; None: nothing is shown."""
        token, rest = _token_in(scope["headers"])
        query, links = _link_in(scope["query_string"])
        rest, cookies = _cookie_in(rest)
        found = Pass(HOST, rest, query)
        if token is not None:
            principal = self._access.tokens.check(token)
            if not principal.scope.covers(Powers.USE):
                raise NotAllowed(
                    f"this needs a token of scope `use`; this one has `{principal.scope}`",
                    hint="make one: torpor token create NAME --scope use",
                )
            return replace(found, principal=principal)
        failure: NotAuthenticated | None = None
        for shown, is_in_query in (*((s, True) for s in links), *((s, False) for s in cookies)):
            try:
                ends = self._access.links.check(
                    shown,
                    target.sandbox_id,
                    target.port,
                    now=self._access.clock.now().timestamp(),
                )
            except NotAuthenticated as error:
                failure = failure or error
                continue
            if is_in_query:
                return replace(found, link=shown, ends=ends)
            _check_maker(scope)
            return found
        if failure is not None:
            raise failure
        return None


def _is_made_elsewhere(scope: Scope) -> bool:
    """Return whether a browser says that a page of another origin made a request."""
    return dict(scope["headers"]).get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")


def _check_maker(scope: Scope) -> None:
    """Raise `NotAllowed` if another page made a request that comes with our cookie."""
    headers = dict(scope["headers"])
    origin = headers.get(b"origin")
    if origin is not None and not is_origin_of(origin, headers.get(b"host", b"")):
        raise _from_elsewhere()
    is_visit = headers.get(b"sec-fetch-mode") == b"navigate" and scope.get("method") in (
        "GET",
        "HEAD",
    )
    if _is_made_elsewhere(scope) and not is_visit:
        raise _from_elsewhere()


def _from_elsewhere() -> NotAllowed:
    return NotAllowed(
        "pages from elsewhere may not use this preview", hint="send X-Torpor-Token from a program"
    )


def _token_in(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str | None, Pairs]:
    """Return our token and the other headers; an Authorization that is not ours is the program's."""
    token: str | None = None
    rest: Pairs = []
    for name, value in headers:
        if name == TOKEN_HEADER:
            token = value.decode("latin-1").strip()
        elif (
            name == b"authorization"
            and value[:7].lower() == b"bearer "
            and (value[7:].strip().startswith(PREFIX.encode()))
        ):
            token = token or value[7:].decode("latin-1").strip()
        else:
            rest.append((name, value))
    return token, rest


def _link_in(query: bytes) -> tuple[bytes, list[str]]:
    """Return the query without our parameter, and its values."""
    rest, found = [], []
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        if name == COOKIE.encode():
            found.append(unquote_plus(value.decode("latin-1")))
        else:
            rest.append(part)
    return b"&".join(rest), found


def _cookie_in(headers: Pairs) -> tuple[Pairs, list[str]]:
    """Return the headers without our cookie, and its values."""
    rest: Pairs = []
    found: list[str] = []
    for name, value in headers:
        if name != b"cookie":
            rest.append((name, value))
            continue
        kept = []
        for part in re.split(rb";\s*", value):
            key, _, content = part.partition(b"=")
            if key.strip() == COOKIE.encode():
                found.append(content.strip().strip(b'"').decode("latin-1"))
            elif part.strip():
                kept.append(part)
        if kept:
            rest.append((name, b"; ".join(kept)))
    return rest, found
