"""Headers that lie."""

from __future__ import annotations

import io
import tarfile

import pytest

from torpor_guest.tarstream import BadTar, TarReader, clean_name


def header(**changes: bytes) -> bytes:
    """A header with some of its fields replaced and its checksum made right."""
    fields = {
        "name": (0, b"x"),
        "size": (124, b"00000000010\0"),
        "type": (156, b"0"),
        "magic": (257, b"ustar\x0000"),
    }
    block = bytearray(512)
    for key, (at, value) in fields.items():
        value = changes.get(key, value)
        block[at : at + len(value)] = value
    block[148:156] = b"%06o\0 " % (sum(block) + 8 * 32)
    return bytes(block)


def test_an_honest_header_is_read() -> None:
    (member,) = TarReader().feed(header())
    assert member.size == 8  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "data",
    [
        header()[:148] + b"0000000\0" + header()[156:],
        header(size=b"-0000000010\0"),
        header(size=b"not-a-number"),
        header(size=b"\xff" + b"\xff" * 11),
        header(size=b"\x80" + b"\xff" * 11),
        header(type=b"3"),
        header(type=b"4"),
        header(type=b"6"),
        header(type=b"S"),
        header(type=b"?"),
        header(name=b"/etc/passwd"),
        header(name=b"a/../../b"),
        header(type=b"L", size=b"77777777777\0"),
        header(type=b"x", size=b"77777777777\0"),
        header(type=b"x", size=b"00000000000\0"),
        header(type=b"x") + b"9999 path=x\n".ljust(512, b"\0"),
        header(type=b"x") + b"garbage!".ljust(512, b"\0"),
        header(type=b"x", size=b"00000000014\0") + b"12 size=-99\n".ljust(512, b"\0") + header(),
        header(type=b"x", size=b"00000000040\0")
        + b"32 GNU.sparse.map=0,1,2,3,45678\n".ljust(512, b"\0")
        + header(),
    ],
)
def test_a_lie_is_refused(data: bytes) -> None:
    with pytest.raises(BadTar):
        list(TarReader().feed(data))


def test_a_huge_size_takes_no_memory() -> None:
    reader = TarReader()
    list(reader.feed(header(size=b"\x80" + (1 << 60).to_bytes(11, "big"))))
    assert list(reader.feed(b"x" * 1000)) == [b"x" * 1000]
    with pytest.raises(BadTar, match="too early"):
        reader.finish()


def test_what_follows_the_end_is_ignored() -> None:
    reader = TarReader()
    assert list(reader.feed(bytes(1024) + b"anything" * 1000)) == []
    reader.finish()


def test_names_that_are_no_utf8_survive() -> None:
    buffer = io.BytesIO()
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    with tarfile.open(
        fileobj=buffer, mode="w", encoding="utf-8", errors="surrogateescape"
    ) as archive:
        archive.addfile(tarfile.TarInfo(name))
    (member,) = TarReader().feed(buffer.getvalue())
    assert member.name == name  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "clean"),
    [("./a//b/.", "a/b"), ("", ""), (".", ""), ("a/", "a"), ("..a/b..", "..a/b..")],
)
def test_names_are_cleaned(name: str, clean: str) -> None:
    assert clean_name(name) == clean


@pytest.mark.parametrize("name", ["/a", "..", "a/..", "../a", "a\0b", "x" * 256, "a/" * 3000])
def test_names_that_lead_astray(name: str) -> None:
    with pytest.raises(BadTar):
        clean_name(name)
