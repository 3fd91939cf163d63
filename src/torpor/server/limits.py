"""How much a client may send: bytes, requests, headers; and how long it may take."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping

from torpor.errors import InvalidRequest, RateLimited

BODY_LIMIT_BYTES = 16 << 20
"""Largest body of a request that may carry an environment, a command's input or a recipe."""
SMALL_BODY_BYTES = 1 << 20
"""Largest body of all others that are read as a whole."""
BUFFERED_MOST_BYTES = 128 << 20
"""Of all bodies together that a listener holds at one time."""
MESSAGE_MOST_BYTES = 1 << 20
"""Largest message over a WebSocket of ours; those through previews are not looked at."""
FRAGMENTS_MOST = 4096
"""Frames that such a message may come in."""
UNREAD_MOST_BYTES = 4 << 20
"""Answers to pings and what else waits for a client that reads nothing; then its WebSocket is cut."""
BODY_SILENCE_S = 60.0
"""Seconds without a byte after which a body is given up."""
HEAD_LIMIT_BYTES = 64 << 10
"""Largest request line with all headers."""
HEADERS_MOST = 100
HEAD_LIMIT_S = 30.0
"""Seconds that a client has to send a request's head, from its first byte or from connecting on."""
CONNECTIONS_MOST = 1024
"""On TCP; when there are more, the one that was idle longest is closed for the new one."""
IN_FLIGHT_MOST = 512
"""Requests of one token that are being carried out at the same time, streams included."""
FAILURES_PER_S, FAILURES_BURST = 2.0, 20
"""Wrong tokens from one address; with more, even a right one has to wait."""
REQUESTS_PER_S = 200.0
"""Of one token, on average; `TORPOR_REQUESTS_PER_SECOND`."""
BURST_S = 5.0
"""How many seconds' worth of requests may come at once."""

_ADDRESSES_MOST = 4096

_BIG = re.compile(
    r"/v1/(sandboxes|templates/build|sandboxes/[^/]+/(exec|exec/stream|terminals|execs/[^/]+/stdin|(contexts/[^/]+/)?run(/stream)?|contexts|fork|fork-tree)"
    r"|snapshots/[^/]+/(restore|fork)|memory/.*)"
)
_STREAMED = re.compile(r"/v1/(sandboxes/[^/]+/fs(/archive)?|memory/import)")


def body_limit(method: str, path: str) -> int | None:
    """Return how large the body of a request may be; None: it is streamed, and has no limit here."""
    if path.startswith("/pandastack/"):
        path = path.removeprefix("/pandastack")
        if (method, path) == ("POST", "/v1/templates/build"):
            return None  # a root file system; the route writes it to disk as it comes
    if method == "PUT" and _STREAMED.fullmatch(path):
        return None
    return BODY_LIMIT_BYTES if _BIG.fullmatch(path) else SMALL_BODY_BYTES


def requests_per_s(environ: Mapping[str, str]) -> float:
    """Return the limit that the environment names. Raises `InvalidRequest` for one that is none."""
    text = environ.get("TORPOR_REQUESTS_PER_SECOND", "")
    if not text:
        return REQUESTS_PER_S
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1e6:
        raise InvalidRequest(
            f"TORPOR_REQUESTS_PER_SECOND is {text!r}; a number over 0 is wanted", hint="unset it"
        )
    return found


class Buckets:
    """One bucket of permits for each name; it fills again at a steady rate. The least used names are forgotten."""

    def __init__(self, per_s: float, burst: float, now_s: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = max(1.0, burst)
        self._now_s = now_s
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, *, count: float = 1.0) -> None:
        """Take permits. Raises `RateLimited` when there are not so many."""
        level, now = self._level(name)
        if level < count:
            raise self._too_many((count - level) / self._per_s)
        self._put(name, level - count, now)

    def check(self, name: str) -> None:
        """Raise `RateLimited` when there is no permit left; takes none."""
        level, _ = self._level(name)
        if level < 1:
            raise self._too_many((1 - level) / self._per_s)

    def _level(self, name: str) -> tuple[float, float]:
        now = self._now_s()
        level, at = self._levels.get(name, (self._burst, now))
        return min(self._burst, level + (now - at) * self._per_s), now

    def _put(self, name: str, level: float, now: float) -> None:
        self._levels[name] = (level, now)
        self._levels.move_to_end(name)
        if len(self._levels) > _ADDRESSES_MOST:
            self._levels.popitem(last=False)

    def _too_many(self, wait_s: float) -> RateLimited:
        return RateLimited(
            f"too many requests: {self._per_s:g} in a second are allowed, {self._burst:g} at once",
            hint="wait as long as Retry-After says; nothing was done",
            retry_after_seconds=max(1, round(wait_s + 0.5)),
        )
