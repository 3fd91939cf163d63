"""The tar reader agrees with Python's own, however the bytes are split, and never breaks on garbage."""

from __future__ import annotations

import contextlib
import io
import tarfile

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.guest.test_protocol import split
from torpor_guest.tarstream import BadTar, Member, TarReader

names = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=60).filter(
        lambda part: part not in (".", "..")
    ),
    min_size=1,
    max_size=4,
).map("/".join)
members = st.lists(
    st.tuples(
        names,
        st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE]),
        st.binary(max_size=1500),
        st.integers(0, 0o7777),
    ),
    max_size=6,
)
cuts = st.lists(st.integers(min_value=0), max_size=20)


def write(entries: list[tuple[str, bytes, bytes, int]], form: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, kind, content, mode in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, mode
            if kind == tarfile.REGTYPE:
                info.size = len(content)
            if kind == tarfile.SYMTYPE:
                info.linkname = "to/" + name * 3
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def read(pieces: list[bytes]) -> list[tuple[Member, bytes]]:
    reader = TarReader()
    found: list[tuple[Member, bytearray]] = []
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, Member):
                found.append((event, bytearray()))
            else:
                found[-1][1].extend(event)
    reader.finish()
    return [(member, bytes(content)) for member, content in found]


@settings(max_examples=60)
@given(members, st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]), cuts)
def test_any_split_reads_what_was_written(
    entries: list[tuple[str, bytes, bytes, int]], form: int, where: list[int]
) -> None:
    data = write(entries, form)
    found = read(split(data, where))
    assert found == read([data])
    assert len(found) == len(entries)
    for (name, kind, content, mode), (member, read_back) in zip(entries, found, strict=True):
        assert (member.name, member.mode) == (name, mode)
        if kind == tarfile.REGTYPE:
            assert (member.kind, member.size, read_back) == ("file", len(content), content)
        elif kind == tarfile.SYMTYPE:
            assert (member.kind, member.target) == ("symlink", "to/" + name * 3)
        else:
            assert member.kind == "dir"


@settings(max_examples=60)
@given(members, st.integers(min_value=0), st.binary(min_size=1, max_size=40))
def test_damage_is_found_or_harmless(
    entries: list[tuple[str, bytes, bytes, int]], where: int, junk: bytes
) -> None:
    data = bytearray(write(entries, tarfile.PAX_FORMAT))
    at = where % len(data)
    data[at : at + len(junk)] = junk
    with contextlib.suppress(BadTar):
        for member, _ in read([bytes(data)]):
            assert not member.name.startswith("/")
            assert ".." not in member.name.split("/")


@given(st.lists(st.binary(max_size=3000), max_size=5))
def test_garbage_is_refused(pieces: list[bytes]) -> None:
    with contextlib.suppress(BadTar):
        assert read([*pieces, b"\0" * 1024]) == []
