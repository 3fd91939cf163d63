"""The record of commands survives whatever happens to its writer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torpor_guest import journal
from torpor_guest.journal import Journal


def opened(path: Path) -> Journal:
    found = Journal(path)
    found.load()
    return found


def test_the_newest_word_counts(tmp_path: Path) -> None:
    book = opened(tmp_path / "journal")
    book.put({"exec_id": "a", "state": "running"})
    book.put({"exec_id": "b", "state": "running"})
    book.put({"exec_id": "a", "state": "exited"})
    book.put({"exec_id": "c", "state": "running"})
    book.forget("c")
    book.forget("never")
    found = Journal(tmp_path / "journal").load()
    assert {key: value["state"] for key, value in found.items()} == {"a": "exited", "b": "running"}


@pytest.mark.parametrize("junk", [b"", b"\n", b"{", b"[]\n", b'{"exec_id": 5}\n', b"\xff\xff\n\0"])
def test_what_cannot_be_read_is_passed_over(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "journal"
    opened(path).put({"exec_id": "a", "state": "exited"})
    with path.open("ab") as file:
        file.write(junk)
    book = Journal(path)
    assert list(book.load()) == ["a"]
    book.put({"exec_id": "b", "state": "exited"})
    assert list(Journal(path).load()) == ["a", "b"]


def test_it_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_SLACK", 10)
    path = tmp_path / "journal"
    book = opened(path)
    for i in range(200):
        book.put({"exec_id": f"e{i}", "state": "exited"})
        book.forget(f"e{i - 3}")
    assert len(path.read_bytes().splitlines()) < 30
    assert list(Journal(path).load()) == ["e197", "e198", "e199"]


def test_a_torn_line_harms_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    book = opened(path)
    real_write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real_write(fd, data[:7]))
        with pytest.raises(OSError, match="No space"):
            book.put({"exec_id": "a", "state": "running"})
    book.put({"exec_id": "b", "state": "running"})
    assert list(Journal(path).load()) == ["b"]
