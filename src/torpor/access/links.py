"""Signed, expiring links to one port of one sandbox: who has one needs no token for that port.

A link's signature is an HMAC-SHA256 over the sandbox, the port and the second at which it ends, with a key that lies
in the home (mode 0600). Nothing of a link is kept. Who removes the key and starts the daemon anew ends all links.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final

from torpor.errors import InvalidRequest, NotAuthenticated
from torpor.model import SandboxId
from torpor.model_access import LINK_SECONDS_MOST

_FORM: Final = re.compile(r"([0-9]{1,12})\.([A-Za-z0-9_-]{43})")
_PURPOSE: Final = "torpor preview link 1"


class LinkKey:
    """Signs links and checks them."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, sandbox_id: SandboxId, port: int, *, now: float, ttl_seconds: int) -> str:
        """Return the signature of a link that ends `ttl_seconds` from `now`, with that time.

        Raises:
            InvalidRequest: it would live too long, or not at all.
        """
        if not 1 <= ttl_seconds <= LINK_SECONDS_MOST:
            raise InvalidRequest(
                f"ttl_seconds is {ttl_seconds}; 1 to {LINK_SECONDS_MOST} is wanted",
                hint="make another link when this one ends",
            )
        ends = int(now) + ttl_seconds
        return f"{ends}.{self._mark(sandbox_id, port, ends)}"

    def check(self, shown: str, sandbox_id: SandboxId, port: int, *, now: float) -> int:
        """Return the second at which a link to that port ends.

        Raises:
            NotAuthenticated: it is not one of ours, is for something else, or has ended.
        """
        found = _FORM.fullmatch(shown)
        ends = int(found[1]) if found else 0
        mark = found[2] if found else ""
        is_right = hmac.compare_digest(self._mark(sandbox_id, port, ends), mark)
        if found is None or not is_right:
            raise NotAuthenticated(
                "the preview link is not valid for this port of this sandbox",
                hint="make one: torpor preview SANDBOX PORT",
            )
        if ends <= now:
            raise NotAuthenticated(
                "the preview link has ended", hint="make another: torpor preview SANDBOX PORT"
            )
        return ends

    def _mark(self, sandbox_id: SandboxId, port: int, ends: int) -> str:
        said = "\0".join((_PURPOSE, sandbox_id, str(port), str(ends))).encode("utf-8", "replace")
        digest = hmac.new(self._key, said, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
