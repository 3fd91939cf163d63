from __future__ import annotations

import pytest

from torpor.errors import (
    Conflict,
    InsufficientResources,
    InvalidRequest,
    LimitExceeded,
    NotFound,
)
from torpor.memory import Space
from torpor.memory.files import MemoryFiles, check_path
from torpor.model_memory import Json


@pytest.fixture
def files(mem: Space) -> MemoryFiles:
    return MemoryFiles(mem)


def test_a_file_lives_through_all_commands(files: MemoryFiles, mem: Space) -> None:
    files.create("/memories/notes.md", "one\ntwo\nthree")
    assert files.view("/memories/notes.md") == "     1\tone\n     2\ttwo\n     3\tthree"
    assert files.view("/memories/notes.md", (2, -1)) == "     2\ttwo\n     3\tthree"
    files.str_replace("/memories/notes.md", "two", "2")
    files.insert("/memories/notes.md", 0, "zero\n")
    files.insert("/memories/notes.md", 4, "four")
    assert files.files()[0].content == "zero\none\n2\nthree\nfour"
    files.rename("/memories/notes.md", "/memories/archive/notes.md")
    assert "archive/notes.md" in files.view("/memories")
    assert "archive/notes.md" in files.view("/memories/archive/")
    files.delete("/memories/archive")
    assert files.files() == []
    with pytest.raises(NotFound):
        files.view("/memories/archive/notes.md")
    assert mem.verify_chain().ok


def test_every_edit_is_a_transaction_that_can_be_undone(files: MemoryFiles, mem: Space) -> None:
    files.create("/memories/a", "first")
    files.create("/memories/a", "second")
    mem.revert(mem.tx, "no")
    assert files.files()[0].content == "first"
    files.create("/memories/a", "second")
    files.create("/memories/a", "first")
    assert files.files()[0].content == "first", "an older text again is an edit"
    assert len(mem.history(subject="/memories/a")) >= 4
    before = mem.tx
    files.delete("/memories/a")
    assert mem.facts("/memories/a", known_at=before) != []


def test_files_go_back_with_a_rewind(files: MemoryFiles, mem: Space) -> None:
    files.create("/memories/a", "first")
    mem.watermark("snap")
    files.create("/memories/a", "second")
    mem.on_restore("snap", "rewind")
    assert files.files()[0].content == "first"


def test_empty_files_and_folders(files: MemoryFiles) -> None:
    assert files.view("/memories") == "Files below /memories:"
    files.create("/memories/empty", "")
    assert files.view("/memories/empty") == "     1\t"
    with pytest.raises(Conflict):
        files.create("/memories/empty/inside", "x")
    files.create("/memories/folder/inside", "x")
    with pytest.raises(Conflict):
        files.create("/memories/folder", "x")
    with pytest.raises(Conflict):
        files.create("/memories/EMPTY", "x")


@pytest.mark.parametrize(
    "where",
    [
        "",
        "/",
        "/etc/passwd",
        "memories/a",
        "/memoriesevil/a",
        "/memories/../etc/passwd",
        "/memories/a/../../etc",
        "/memories/./a",
        "/memories//a",
        "/memories/a\0b",
        "/memories/a\nb",
        "/memories/..\\a",
        "/memories/%2e%2e/etc",
        "/memories/" + "a" * 300,
        "/memories/\u202eevil",
    ],
)
def test_no_path_leads_out(files: MemoryFiles, where: str, mem: Space) -> None:
    with pytest.raises(InvalidRequest):
        check_path(where)
    before = mem.tx
    for command in (
        lambda: files.create(where, "x"),
        lambda: files.view(where),
        lambda: files.delete(where),
        lambda: files.rename("/memories/a", where),
    ):
        with pytest.raises((InvalidRequest, NotFound)):
            command()
    assert mem.tx == before


def test_wrong_edits_are_refused(files: MemoryFiles, mem: Space) -> None:
    files.create("/memories/a", "x x")
    files.create("/memories/b", "y")
    before = mem.tx
    for error, command in (
        (InvalidRequest, lambda: files.str_replace("/memories/a", "x", "z")),
        (InvalidRequest, lambda: files.str_replace("/memories/a", "", "z")),
        (NotFound, lambda: files.str_replace("/memories/a", "q", "z")),
        (NotFound, lambda: files.str_replace("/memories/none", "q", "z")),
        (InvalidRequest, lambda: files.insert("/memories/a", 9, "z")),
        (InvalidRequest, lambda: files.view("/memories/a", (2, 9))),
        (Conflict, lambda: files.rename("/memories/a", "/memories/b")),
        (InvalidRequest, lambda: files.create("/memories", "z")),
        (LimitExceeded, lambda: files.create("/memories/c", "z" * (300 << 10))),
        (InvalidRequest, lambda: files.create("/memories/c", "nul \0")),
        (NotFound, lambda: files.delete("/memories")),
        (NotFound, lambda: files.delete("/memories/none")),
    ):
        with pytest.raises(error):
            command()
    assert mem.tx == before


@pytest.mark.parametrize(
    ("subject", "attribute", "value"),
    [
        ("/etc/passwd", "content", {"text": "x"}),
        ("/memories/../etc", "content", {"text": "x"}),
        ("/memories", "content", {"text": "x"}),
        ("/memories/a", "content", {"words": "x"}),
        ("/memories/a", "content", {"text": 5}),
        ("/memories/a", "content", "x"),
        ("/memories/a", "contents", {"text": "x"}),
        ("/memories/a", "content", {"text": "x" * (257 << 10)}),
    ],
)
def test_a_claim_of_a_file_has_its_shape(
    mem: Space, subject: str, attribute: str, value: Json
) -> None:
    with pytest.raises((InvalidRequest, LimitExceeded)):
        mem.remember(subject, attribute, value, kind="file")
    mem.files.create("/memories/b", "b")
    (file,) = mem.files.files()
    with pytest.raises(InvalidRequest):
        mem.correct(file.fact, "only text", "wrong")
    mem.correct(file.fact, {"text": "c"}, "wrong")
    assert mem.files.view("/memories/b") == "     1\tc"
    assert [f.path for f in mem.files.files()] == ["/memories/b"]


def test_facts_are_no_files(files: MemoryFiles, mem: Space) -> None:
    mem.remember("/memories/x", "content", "not a file")
    assert files.files() == []
    with pytest.raises(NotFound):
        files.view("/memories/x")


def test_a_rename_that_fails_half_way_did_nothing(
    mem: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = mem.files
    files.create("/memories/a/one", "1")
    files.create("/memories/a/two", "2")

    def full(*_: object, **__: object) -> None:
        raise InsufficientResources("the disk is full")

    monkeypatch.setattr(mem, "expire", full)
    for attempt in (
        lambda: files.rename("/memories/a/one", "/memories/b"),
        lambda: files.delete("/memories/a"),
    ):
        with pytest.raises(InsufficientResources):
            attempt()
    assert [f.path for f in files.files()] == ["/memories/a/one", "/memories/a/two"]
