"""The guest channel's frames, tested with the standard library alone: also inside a sandbox, by `make demo`."""

from __future__ import annotations

import random
import unittest

from torpor_guest import protocol


class Frames(unittest.TestCase):
    """A frame comes out as it went in, and noise does not come out at all."""

    def setUp(self) -> None:
        self.random = random.Random(7)

    def _payload(self, size: int) -> bytes:
        return bytes(self.random.choice(b"\x7d\x7e\x5d\x5e\x00a") for _ in range(size))

    def test_a_frame_comes_out_as_it_went_in(self) -> None:
        for size in (0, 1, 2, 255, 4096, protocol.MAX_PAYLOAD):
            payload = self._payload(size)
            wire = protocol.encode(protocol.DATA, 1, 9, 77, payload)
            (frame,) = protocol.Decoder(9).feed(wire)
            self.assertEqual(
                (frame.type, frame.flags, frame.stream, frame.payload),
                (protocol.DATA, 1, 77, payload),
            )

    def test_any_split_gives_the_same_frames(self) -> None:
        payloads = [self._payload(self.random.randrange(200)) for _ in range(20)]
        wire = b"".join(protocol.encode(protocol.DATA, 0, 1, n, p) for n, p in enumerate(payloads))
        for _ in range(30):
            decoder, at, found = protocol.Decoder(1), 0, []
            while at < len(wire):
                step = self.random.randrange(1, 64)
                found += decoder.feed(wire[at : at + step])
                at += step
            self.assertEqual([f.payload for f in found], payloads)

    def test_half_a_frame_from_before_is_dropped(self) -> None:
        half = protocol.encode(protocol.DATA, 0, 1, 1, b"from before")[:-5]
        whole = protocol.encode(protocol.DATA, 0, 2, 1, b"from now")
        found = protocol.Decoder(2).feed(half + whole)
        self.assertEqual([f.payload for f in found], [b"from now"])

    def test_a_frame_of_another_epoch_is_dropped(self) -> None:
        wire = protocol.encode(protocol.DATA, 0, 1, 1, b"old") + protocol.encode(
            protocol.DATA, 0, 2, 1, b"new"
        )
        self.assertEqual([f.payload for f in protocol.Decoder(2).feed(wire)], [b"new"])

    def test_noise_gives_no_frame_and_no_failure(self) -> None:
        decoder = protocol.Decoder(1)
        for _ in range(200):
            self.assertEqual(decoder.feed(self.random.randbytes(500)), [])
        self.assertEqual(
            len(decoder.feed(protocol.encode(protocol.DATA, 0, 1, 1, b"after"))[-1:]), 1
        )

    def test_a_flipped_bit_is_found(self) -> None:
        wire = bytearray(protocol.encode(protocol.DATA, 0, 1, 1, b"some content"))
        for at in range(1, len(wire) - 1):
            damaged = bytearray(wire)
            damaged[at] ^= 0x01
            for frame in protocol.Decoder(1).feed(bytes(damaged) + b"\x7e"):
                self.assertEqual(frame.payload, b"some content")


class Versions(unittest.TestCase):
    """Two ends agree on a version, or say in words why not."""

    def test_a_skew_names_both_versions(self) -> None:
        greeting = protocol.unpack_json(protocol.hello("n", window=1000))
        self.assertIsInstance(protocol.agree(greeting), int)
        greeting |= {"protocol": 901, "oldest": 900}
        with self.assertRaises(protocol.ProtocolSkew) as caught:
            protocol.agree(greeting)
        self.assertIn("901", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
