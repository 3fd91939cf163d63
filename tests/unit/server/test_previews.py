"""Names of previews and links to them: whatever is written there, nothing else is opened."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

from torpor.access.links import LinkKey
from torpor.errors import HostNotReady, InvalidRequest, NotAuthenticated
from torpor.model import SandboxId
from torpor.model_access import LINK_SECONDS_MOST
from torpor.server.hosts import Hosts
from torpor.server.previews.heads import answer_headers, without_hops
from torpor.server.previews.links import Listeners
from torpor.server.previews.names import Target, label_of, target_of

ID = SandboxId("sbx_0123456789abcdefghjk")
OTHER = SandboxId("sbx_0123456789abcdefghjm")
KEY = LinkKey(bytes(32))
NOW = 1_800_000_000.0


def test_names_that_are_previews() -> None:
    hosts = Hosts(["box.example", ".wide.example"])
    for name in (
        "8000-sbx_0123456789abcdefghjk.localhost",
        "8000-sbx_0123456789abcdefghjk.localhost:8080",
        "8000-sbx-0123456789abcdefghjk.localhost",
        "8000-SBX_0123456789ABCDEFGHJK.LocalHost",
        "8000-sbx_0123456789abcdefghjk.box.example.",
        "8000-sbx_0123456789abcdefghjk.wide.example",
        "8000-sbx_0123456789abcdefghjk.a.wide.example",
    ):
        assert target_of(name.encode(), hosts) == Target(ID, 8000), name
    assert label_of(Target(ID, 8000)) == "8000-sbx_0123456789abcdefghjk"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "localhost",
        "8000-sbx_0123456789abcdefghjk",
        "8000-sbx_0123456789abcdefghjk.",
        "8000-sbx_0123456789abcdefghjk.evil.example",
        "8000-sbx_0123456789abcdefghjk.localhost.evil.example",
        "8000-sbx_0123456789abcdefghjk.10.0.0.1",
        "8000-sbx_0123456789abcdefghjk.x.box.example",
        "0-sbx_0123456789abcdefghjk.localhost",
        "65536-sbx_0123456789abcdefghjk.localhost",
        "08000-sbx_0123456789abcdefghjk.localhost",
        "-1-sbx_0123456789abcdefghjk.localhost",
        "8000-sbx_0123456789abcdefghi.localhost",
        "8000-sbx_0123456789abcdefghil.localhost",
        "8000-snap_0123456789abcdefghjk.localhost",
        "[::1]",
    ],
)
def test_names_that_are_none(name: str) -> None:
    assert target_of(name.encode(), Hosts(["box.example"])) is None


@given(st.binary(max_size=200))
def test_any_host_header(host: bytes) -> None:
    found = target_of(host, Hosts())
    assert found is None or 1 <= found.port <= 65535


def test_a_link_is_right_until_it_ends() -> None:
    signed = KEY.sign(ID, 8000, now=NOW, ttl_seconds=60)
    assert KEY.check(signed, ID, 8000, now=NOW + 59) == NOW + 60
    with pytest.raises(NotAuthenticated, match="ended"):
        KEY.check(signed, ID, 8000, now=NOW + 60)
    for sandbox_id, port in ((OTHER, 8000), (ID, 8001), (ID, 800)):
        with pytest.raises(NotAuthenticated, match="not valid"):
            KEY.check(signed, sandbox_id, port, now=NOW)
    with pytest.raises(NotAuthenticated, match="not valid"):
        LinkKey(b"x" * 32).check(signed, ID, 8000, now=NOW)


@pytest.mark.parametrize("ttl_seconds", [0, -1, LINK_SECONDS_MOST + 1])
def test_a_life_that_cannot_be(ttl_seconds: int) -> None:
    with pytest.raises(InvalidRequest):
        KEY.sign(ID, 8000, now=NOW, ttl_seconds=ttl_seconds)


@given(st.text(max_size=80))
def test_any_text_is_no_link(shown: str) -> None:
    with pytest.raises(NotAuthenticated):
        KEY.check(shown, ID, 8000, now=NOW)


@given(st.data())
def test_a_link_with_a_changed_letter_is_none(data: st.DataObject) -> None:
    signed = KEY.sign(ID, 8000, now=NOW, ttl_seconds=60)
    at = data.draw(st.integers(0, len(signed) - 1))
    letter = data.draw(st.sampled_from(string.ascii_letters + string.digits + "-_.=\0é"))
    changed = signed[:at] + letter + signed[at + 1 :]
    if changed != signed:
        with pytest.raises(NotAuthenticated):
            KEY.check(changed, ID, 8000, now=NOW)


def test_headers_between_neighbours_stay_there() -> None:
    headers = [(b"connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"te", b"x"), (b"a", b"b")]
    assert without_hops(headers) == [(b"a", b"b")]


def test_cookies_stay_with_their_name() -> None:
    class Admitted:
        link = None

    headers = [
        (b"Set-Cookie", b"a=1; Domain=.box.example; Path=/"),
        (b"set-cookie", b"b=2;domain=x;Secure"),
        (b"set-cookie", b" torpor_preview=forged"),
        (b"Transfer-Encoding", b"chunked"),
    ]
    found = answer_headers(headers, Admitted(), {"headers": []})  # type: ignore[arg-type]
    assert found == [(b"set-cookie", b"a=1; Path=/"), (b"set-cookie", b"b=2;Secure")]


def asked(host: str | None) -> HTTPConnection:
    """A request by TCP with that Host; None: by the Unix socket."""
    headers = [] if host is None else [(b"host", host.encode())]
    client = None if host is None else ("127.0.0.1", 5)
    return HTTPConnection({"type": "http", "headers": headers, "client": client})


@pytest.mark.parametrize(
    ("listener", "names", "base"),
    [
        ("127.0.0.1", [], "localhost:8080"),
        ("0.0.0.0", [], "localhost:8080"),
        ("::1", [], "localhost:8080"),
        ("localhost", [], "localhost:8080"),
        ("192.0.2.1", ["box.example"], "box.example:8080"),
        ("127.0.0.1", [".Box.example"], "box.example:8080"),
    ],
)
def test_where_previews_are_for_who_asks_by_the_unix_socket(
    listener: str, names: list[str], base: str
) -> None:
    listeners = Listeners()
    with pytest.raises(HostNotReady, match="does not listen"):
        listeners.base(asked(None))
    with listeners.noted(listener, 8080, names):
        assert listeners.base(asked(None)) == base
    with pytest.raises(HostNotReady, match="does not listen"):
        listeners.base(asked(None))


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("localhost:8080", "localhost:8080"),
        ("127.0.0.1:8080", "localhost:8080"),
        ("box.example", "box.example"),
        ("[::1]:8080", "localhost:8080"),
    ],
)
def test_where_previews_are_for_who_asks_by_tcp(host: str, base: str) -> None:
    listeners = Listeners()
    with listeners.noted("127.0.0.1", 8080, []):
        assert listeners.base(asked(host)) == base


def test_an_address_that_others_use_needs_a_name() -> None:
    listeners = Listeners()
    with listeners.noted("192.0.2.1", 8080, []):
        for connection in (asked(None), asked("192.0.2.1:8080")):
            with pytest.raises(HostNotReady, match="need a name"):
                listeners.base(connection)
    with listeners.noted("0.0.0.0", 8080, ["box.example"]):
        assert listeners.base(asked("192.0.2.1:8080")) == "box.example:8080"
