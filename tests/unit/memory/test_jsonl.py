from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.unit.memory.clock import day
from tests.unit.memory.fakes import FakeEmbedder
from torpor.errors import Conflict, DataDamaged, HostNotReady, NotFound
from torpor.memory import Memory


def fill(memory: Memory) -> None:
    mem = memory.space("a")
    mem.record("My editor is vim.", occurred_at=day(-3))
    mem.consolidate()
    mem.remember("user", "editor", "emacs", authority="user_said", valid_from=day(-2))
    mem.watermark("snap")
    child = mem.fork("b")
    child.remember("user", "pet", "cat 🐈")
    mem.merge(mem.plan_merge(child.branch))
    mem.erase(episode=mem.record("to be forgotten").id)
    mem.on_restore("snap", "rewind")


def test_an_import_is_the_same_memory(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Memory.open(path) as memory:
        fill(memory)
        head = memory.verify_chain().head
        done = memory.export(out)
        assert done.head == head
        mem = memory.space("a")
        facts, episodes = mem.facts(), mem.episodes()
        other = memory.space("b").facts()
        quotes = [mem.explain(f).evidence for f in facts]
    with Memory.open(tmp_path / "new.db") as memory:
        assert memory.import_(out).rows == done.rows
        report = memory.verify_chain(expect=head)
        assert report.ok
        mem = memory.space("a")
        assert mem.facts() == facts
        assert mem.episodes() == episodes
        assert memory.space("b").facts() == other
        assert [mem.explain(f).evidence for f in facts] == quotes
        assert len(mem.recall("editor")) >= 1
        assert len(memory.space("b").recall("cat pet")) >= 1
        memory.export(tmp_path / "again.jsonl")
        mem.record("it goes on")
        assert memory.verify_chain().ok
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()


def test_vectors_are_made_again(path: Path, tmp_path: Path) -> None:
    with Memory.open(path) as memory:
        memory.space("a").record("a kitten sleeps")
        memory.export(tmp_path / "out.jsonl")
    with Memory.open(tmp_path / "new.db", embedder=FakeEmbedder()) as memory:
        memory.import_(tmp_path / "out.jsonl")
        memory.embed_missing()
        assert len(memory.space("a").recall("feline")) == 1


def test_a_memory_that_is_not_empty_takes_no_import(path: Path, tmp_path: Path) -> None:
    with Memory.open(path) as memory:
        fill(memory)
        memory.export(tmp_path / "out.jsonl")
        with pytest.raises(Conflict):
            memory.import_(tmp_path / "out.jsonl")


def changed(source: Path, target: Path, change: str) -> Path:
    lines = source.read_bytes().splitlines(keepends=True)
    if change == "cut":
        lines = lines[:-3]
    elif change == "edit":
        lines[5] = (
            lines[5].replace(b"vim", b"ed!") if b"vim" in lines[5] else lines[5][:-2] + b" }\n"
        )
    elif change == "not json":
        lines[5] = b"{not json\n"
    elif change == "no checksum":
        lines = lines[:-1]
    elif change == "empty":
        lines = []
    target.write_bytes(b"".join(lines))
    return target


@pytest.mark.parametrize("change", ["cut", "edit", "not json", "no checksum", "empty"])
def test_a_damaged_export_is_refused_and_nothing_is_written(
    path: Path, tmp_path: Path, change: str
) -> None:
    with Memory.open(path) as memory:
        fill(memory)
        memory.export(tmp_path / "out.jsonl")
    bad = changed(tmp_path / "out.jsonl", tmp_path / "bad.jsonl", change)
    with Memory.open(tmp_path / "new.db") as memory:
        with pytest.raises(DataDamaged):
            memory.import_(bad)
        assert memory.agents() == ()


def resealed(source: Path, target: Path, edit: dict[str, object]) -> Path:
    import hashlib

    lines = source.read_bytes().splitlines(keepends=True)[:-1]
    lines[0] = json.dumps({**json.loads(lines[0]), **edit}).encode() + b"\n"
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    target.write_bytes(b"".join(lines) + json.dumps({"sha256": digest}).encode() + b"\n")
    return target


def test_other_formats_and_newer_versions_are_refused(path: Path, tmp_path: Path) -> None:
    with Memory.open(path) as memory:
        fill(memory)
        memory.export(tmp_path / "out.jsonl")
    with Memory.open(tmp_path / "new.db") as memory:
        with pytest.raises(HostNotReady):
            memory.import_(resealed(tmp_path / "out.jsonl", tmp_path / "x", {"version": 9}))
        with pytest.raises(DataDamaged):
            memory.import_(resealed(tmp_path / "out.jsonl", tmp_path / "x", {"format": "mbox"}))
        with pytest.raises(NotFound):
            memory.import_(tmp_path / "missing.jsonl")


def test_a_place_that_cannot_be_written_is_said(path: Path, tmp_path: Path) -> None:
    with Memory.open(path) as memory:
        for place in (tmp_path / "none" / "out.jsonl", tmp_path):
            with pytest.raises(HostNotReady, match="cannot be written"):
                memory.export(place)
    assert [p.name for p in tmp_path.iterdir()] == ["agent.db"]


def test_what_is_left_of_a_damaged_file_can_be_read(path: Path, tmp_path: Path) -> None:
    with Memory.open(path) as memory:
        mem = memory.space("a")
        for n in range(400):
            mem.record(f"message {n} with enough words to fill some pages of the file")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    with pytest.raises(DataDamaged):
        Memory.open(path)
    done = Memory.salvage(path, to=tmp_path / "left.jsonl")
    assert done.rows > 100
    assert path.read_bytes() == bytes(data)
    with Memory.open(tmp_path / "new.db") as memory:
        memory.import_(tmp_path / "left.jsonl", verify=False)
        assert len(memory.space("a").episodes()) > 50


def test_a_file_that_was_cut_short_can_be_read(path: Path, tmp_path: Path) -> None:
    with Memory.open(path) as memory:
        mem = memory.space("a")
        for n in range(400):
            mem.record(f"message {n} with enough words to fill some pages of the file")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    with pytest.raises(DataDamaged):
        Memory.open(path)
    done = Memory.salvage(path, to=tmp_path / "left.jsonl")
    assert done.rows > 100
    assert done.lost > 0
    with Memory.open(tmp_path / "new.db") as memory:
        memory.import_(tmp_path / "left.jsonl", verify=False)
        mem = memory.space("a")
        assert len(mem.episodes()) > 50
        before = mem.tx
        mem.remember("user", "home", "Oslo")
        assert mem.tx == before + 1
        assert [f.value for f in mem.facts()] == ["Oslo"]


def test_a_table_that_the_schema_does_not_name_any_more_costs_only_itself(
    path: Path, tmp_path: Path
) -> None:
    with Memory.open(path) as memory:
        memory.space("a").record("My editor is vim.")
        memory.space("a").consolidate()
    path.write_bytes(
        path.read_bytes().replace(b"CREATE TABLE supersession (", b"CREATE TXBLE supersession (")
    )
    done = Memory.salvage(path, to=tmp_path / "left.jsonl")
    assert done.lost == 1
    with Memory.open(tmp_path / "new.db") as memory:
        memory.import_(tmp_path / "left.jsonl", verify=False)
        assert [f.value for f in memory.space("a").facts()] == ["vim"]


def test_a_transaction_that_is_lost_is_said_in_the_history(path: Path, tmp_path: Path) -> None:
    with Memory.open(path) as memory:
        memory.space("a").remember("user", "home", "Oslo")
        memory.export(tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines(keepends=True)[:-1]
    body = b"".join(line for line in lines if b'"table": "txn"' not in line)
    sums = {"sha256": hashlib.sha256(body).hexdigest()}
    (tmp_path / "out.jsonl").write_bytes(body + json.dumps(sums).encode() + b"\n")
    with Memory.open(tmp_path / "new.db") as memory:
        memory.import_(tmp_path / "out.jsonl", verify=False)
        mem = memory.space("a")
        assert [(c.value, c.kind) for c in mem.history(subject="user")] == [("Oslo", "salvage")]
        mem.remember("user", "home", "Rome")
        assert [f.value for f in mem.facts()] == ["Rome"]


def test_salvage_of_a_whole_file_loses_nothing(path: Path, tmp_path: Path) -> None:
    with Memory.open(path) as memory:
        fill(memory)
        memory.export(tmp_path / "export.jsonl")
    done = Memory.salvage(path, to=tmp_path / "left.jsonl")
    assert done.lost == 0
    assert (tmp_path / "left.jsonl").read_bytes() == (tmp_path / "export.jsonl").read_bytes()


def test_salvage_needs_a_database(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Memory.salvage(tmp_path / "missing.db", to=tmp_path / "x")
    (tmp_path / "text.db").write_text("no database at all, but long enough to be read as one")
    with pytest.raises(DataDamaged):
        Memory.salvage(tmp_path / "text.db", to=tmp_path / "x")
    assert not (tmp_path / "x").exists()
