"""The frames survive any split, any damage and any garbage, in bounded memory."""

from __future__ import annotations

import itertools
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from torpor_guest import protocol
from torpor_guest.protocol import Decoder, Frame, ItemBuffer, encode

EPOCH = 7
payloads = st.one_of(
    st.binary(max_size=300),
    st.lists(st.sampled_from([b"~", b"}", b"}]", b"}^", b"\0", b"a"]), max_size=60).map(b"".join),
)
frames = st.builds(
    Frame,
    type=st.integers(1, protocol.PONG),
    flags=st.integers(0, 255),
    epoch=st.just(EPOCH),
    stream=st.integers(0, 2**32 - 1),
    payload=payloads,
)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def decode(decoder: Decoder, pieces: list[bytes]) -> list[Frame]:
    return [frame for piece in pieces for frame in decoder.feed(piece)]


@given(st.lists(frames, max_size=8), st.lists(st.integers(min_value=0), max_size=20))
def test_any_split_gives_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    wire = b"".join(encode(*frame) for frame in sent)
    assert decode(Decoder(EPOCH), split(wire, cuts)) == sent
    assert decode(Decoder(EPOCH), [wire[i : i + 1] for i in range(len(wire))]) == sent


@given(frames, frames, st.integers(min_value=0))
def test_half_a_frame_of_before_never_harms_the_next(old: Frame, new: Frame, cut: int) -> None:
    before = encode(old.type, old.flags, EPOCH - 1, old.stream, old.payload)
    half = before[: cut % len(before)]
    got = decode(Decoder(EPOCH), [half + encode(*new)])
    assert got[-1] == new
    assert all(frame.type in (protocol.HELLO, protocol.ANNOUNCE) for frame in got[:-1])


@given(frames, st.integers(min_value=0), st.integers(1, 255))
def test_a_damaged_frame_is_dropped_or_is_another_frame_never_taken_for_itself(
    frame: Frame, where: int, change: int
) -> None:
    wire = bytearray(encode(*frame))
    wire[where % len(wire)] ^= change
    got = decode(Decoder(EPOCH), [bytes(wire), encode(*frame)])
    assert got[-1:] == [frame]
    assert all(item == frame for item in got)


@given(st.lists(st.binary(max_size=2000), max_size=20))
def test_garbage_never_raises(pieces: list[bytes]) -> None:
    decoder = Decoder(EPOCH)
    decode(decoder, pieces)
    wanted = Frame(protocol.PONG, 0, EPOCH, 0, b"x")
    assert decode(decoder, [encode(*wanted)]) == [wanted]


def test_endless_garbage_takes_no_memory() -> None:
    decoder = Decoder(EPOCH)
    block = b"\xff" * 65536
    for _ in range(200):
        assert decoder.feed(block) == []
    assert sys.getsizeof(decoder._pending) < 3 * protocol.MAX_PAYLOAD
    assert decoder.wasted_bytes > 150 * len(block)
    wanted = Frame(protocol.PONG, 0, EPOCH, 0, b"x")
    assert decoder.feed(encode(*wanted)) == [wanted]


@settings(max_examples=30)
@given(st.integers(0, 5000), st.binary(max_size=20))
def test_any_number_of_escapes(count: int, rest: bytes) -> None:
    frame = Frame(protocol.DATA, 0, EPOCH, 1, b"~}" * count + rest)
    assert Decoder(EPOCH).feed(encode(*frame)) == [frame]


def test_other_epochs_are_dropped_but_greetings_pass() -> None:
    wire = encode(protocol.DATA, 0, 3, 1, b"old") + encode(protocol.HELLO, 0, 3, 0, b"{}")
    assert [frame.type for frame in Decoder(EPOCH).feed(wire)] == [protocol.HELLO]


def test_a_payload_over_the_limit_is_dropped() -> None:
    decoder = Decoder(EPOCH)
    assert decoder.feed(encode(protocol.DATA, 0, EPOCH, 1, bytes(protocol.MAX_PAYLOAD + 1))) == []
    assert len(decoder.feed(encode(protocol.DATA, 0, EPOCH, 1, bytes(protocol.MAX_PAYLOAD)))) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
objects = st.dictionaries(st.text(), json_values, max_size=4)


@given(objects, st.integers(0, 3))
def test_messages_survive_being_cut_into_frames(value: dict[str, object], pad: int) -> None:
    value = {**value, "pad": "x" * (pad * 50_000)}
    wire = protocol.encode_message(protocol.OPEN, EPOCH, 1, value)
    buffer = protocol.MessageBuffer()
    answers = [buffer.add(frame) for frame in Decoder(EPOCH).feed(wire)]
    assert answers == [None] * (len(answers) - 1) + [value]


@settings(max_examples=50)
@given(st.lists(objects, max_size=5), st.lists(st.integers(min_value=0), max_size=10))
def test_items_survive_any_split(values: list[dict[str, object]], cuts: list[int]) -> None:
    wire = b"".join(protocol.pack_json(value) + b"\n" for value in values)
    buffer = ItemBuffer()
    assert [item for piece in split(wire, cuts) for item in buffer.feed(piece)] == values
