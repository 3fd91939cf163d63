"""Versions, windows and messages of the guest protocol."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import torpor_guest
from torpor_guest import protocol
from torpor_guest.protocol import (
    Frame,
    ItemBuffer,
    MessageBuffer,
    ProtocolError,
    ProtocolSkew,
    ReceiveWindow,
    SendWindow,
)


def test_versions_in_common_are_found() -> None:
    assert protocol.agree({"protocol": protocol.PROTOCOL_VERSION + 3, "oldest": 1}) == 1


def test_a_skew_names_both_versions() -> None:
    with pytest.raises(ProtocolSkew, match=r"version 1, the other end speaks versions 7 to 9"):
        protocol.agree({"protocol": 9, "oldest": 7})


@pytest.mark.parametrize(
    "hello", [{}, {"protocol": "1", "oldest": 1}, {"protocol": 1, "oldest": 2}]
)
def test_a_greeting_without_versions_is_refused(hello: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        protocol.agree(hello)


def test_windows_are_held_within_bounds() -> None:
    assert protocol.window_of({"window": 1 << 60}) == protocol.MAX_WINDOW
    assert protocol.window_of({"window": -5}) == protocol.MIN_WINDOW
    assert protocol.window_of({"window": "much"}) == protocol.DEFAULT_WINDOW


def test_more_data_than_credit_is_an_error() -> None:
    window = ReceiveWindow(1000)
    window.received(1000 - protocol.FRAME_COST)
    with pytest.raises(ProtocolError):
        window.received(1)


def test_tiny_frames_use_up_credit() -> None:
    window = ReceiveWindow(1000)
    for _ in range(1000 // (1 + protocol.FRAME_COST)):
        window.received(1)
    with pytest.raises(ProtocolError):
        window.received(1)


def test_credit_comes_back_as_the_reader_reads() -> None:
    sender, window = SendWindow(1000), ReceiveWindow(1000)
    moved = 0
    while moved < 10_000:
        size = min(300, sender.room)
        assert size > 0
        sender.sent(size)
        window.received(size)
        moved += size
        if due := window.consumed(size):
            sender.granted(due)


@pytest.mark.parametrize("payload", [b"", b"\0\0\0", b"\xff\xff\xff\xff"])
def test_credit_that_cannot_be_is_an_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        SendWindow(0).granted(payload)


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b"nan", b"[" * 60_000])
def test_what_is_no_json_object_is_an_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.unpack_json(payload)


def test_a_message_without_end_is_an_error() -> None:
    buffer = MessageBuffer()
    frame = Frame(protocol.CLOSE, protocol.MORE, 1, 1, b"x" * protocol.MAX_PAYLOAD)
    for _ in range(protocol.MAX_MESSAGE // protocol.MAX_PAYLOAD):
        assert buffer.add(frame) is None
    with pytest.raises(ProtocolError):
        buffer.add(frame)


def test_an_item_without_end_is_an_error() -> None:
    buffer = ItemBuffer()
    for _ in range(protocol.MAX_MESSAGE // protocol.MAX_PAYLOAD):
        assert list(buffer.feed(b"x" * protocol.MAX_PAYLOAD)) == []
    with pytest.raises(ProtocolError):
        list(buffer.feed(b"x"))


def test_the_guest_agent_needs_the_standard_library_only() -> None:
    assert torpor_guest.__file__
    package = Path(torpor_guest.__file__).parent
    found: set[str] = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found.add(node.module.split(".")[0])
    assert found - sys.stdlib_module_names - {"torpor_guest"} == set()
