"""Live output of a change's command: all of it, in order, without what looks like a secret, however it is cut."""

from __future__ import annotations

import random

import pytest

from torpor.recovery.changes.live import CHUNK_BYTES, HELD_MOST, LiveText

SECRET = "0123456789abcdef"


def told(data: bytes, *sizes: int) -> str:
    """What is told of `data` when it comes in pieces of these sizes, again and again."""
    live, at, turn, pieces = LiveText(), 0, 0, []
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pieces += live.feed(data[at : at + size], at)
        at, turn = at + size, turn + 1
    pieces += live.end()
    offsets = [offset for offset, _ in pieces]
    assert offsets == sorted(set(offsets))
    return "".join(text for _, text in pieces)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"a\nexport API_KEY={SECRET}\nb", "a\nexport API_KEY=[masked]\nb"),
        (f"10%\r20%\rtoken: {SECRET}", "10%\r20%\rtoken: [masked]"),
        (f'"password":\n  {SECRET}\nb\n', '"password":\n  [masked]\nb\n'),
        (f"Authorization: Bearer\n {SECRET}\n", "Authorization: Bearer\n [masked]\n"),
        (
            f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END RSA PRIVATE KEY-----\nend\n",
            "-----BEGIN RSA PRIVATE KEY-----[masked]-----END RSA PRIVATE KEY-----\nend\n",
        ),
        ("é nothing of the kind:\n\n3 tokens\n", "é nothing of the kind:\n\n3 tokens\n"),
    ],
)
def test_secrets_are_masked_however_they_are_cut(text: str, left: str, size: int) -> None:
    assert told(text.encode(), size) == left


def test_a_line_is_told_as_soon_as_it_has_ended() -> None:
    live = LiveText()
    assert list(live.feed(b"one\ntw", 0)) == [(0, "one\n")]
    assert list(live.feed(b"o\r", 6)) == [(4, "two\r")]
    assert list(live.feed(b"three", 8)) == []
    assert list(live.end()) == [(8, "three")]
    assert list(live.end()) == []


def test_a_line_without_an_end_is_told_in_part_and_little_is_held() -> None:
    live, size = LiveText(), 0
    for number in range(100):
        size += sum(len(text) for _, text in live.feed(b"word " * 400, number * 2000))
        assert number * 2000 + 2000 - size <= 2 * HELD_MOST
    words = b"x" * (3 * HELD_MOST) + b" Bearer "
    assert SECRET not in told(words + SECRET.encode() + b" y" * HELD_MOST, 100)
    assert told(b"x" * (CHUNK_BYTES * 3), 5000) == "x" * (CHUNK_BYTES * 3)


def test_a_key_without_an_end_hides_no_more_than_a_key_takes() -> None:
    data = b"-----BEGIN PRIVATE KEY-----\n" + b"line\n" * 10_000
    assert 0 < told(data, 1000).count("line") < 9000


def test_nothing_is_lost_of_anything_else() -> None:
    chance = random.Random(7)
    for _ in range(50):
        data = bytes(chance.choices(b"ab \n\r=:-", k=20_000))
        assert told(data, *(chance.randint(1, 9000) for _ in range(5))) == data.decode()
