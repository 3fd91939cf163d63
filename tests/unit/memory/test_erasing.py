from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.memory.fakes import FakeEmbedder
from torpor.errors import InsufficientResources, InvalidRequest, NotFound
from torpor.memory import Memory, Space, Status
from torpor.memory.rows import TombstoneRow

SECRET = "Alice Quimby lives at 12 Marchmont Crescent and takes warfarin daily"


def bytes_of(path: Path) -> bytes:
    found = b""
    for end in ("", "-wal", "-journal"):
        part = Path(f"{path}{end}")
        found += part.read_bytes() if part.exists() else b""
    return found


def fill(mem: Space) -> dict[str, str]:
    told = mem.record(SECRET, subjects=["alice"])
    fact = mem.remember(
        "alice", "address", "12 Marchmont Crescent", evidence=[(told.id, "12 Marchmont Crescent")]
    )
    child = mem.remember("route", "summary", "via Marchmont", derived_from=[fact.id])
    mem.correct(fact.id, "14 Marchmont Crescent", "Alice moved doors")
    mem.recall("where does alice live?")
    mem.record("Bob likes turnips and radishes.", subjects=["bob"])
    mem.remember("bob", "likes", "turnips")
    return {"episode": told.id, "fact": fact.id, "child": child.id}


def test_a_subject_is_gone_from_every_byte(path: Path) -> None:
    with Memory.open(path, embedder=FakeEmbedder()) as memory:
        mem = memory.space("a")
        fill(mem)
        assert b"Marchmont" in bytes_of(path)
        receipt = mem.erase(subject="alice", reason="she asked")
        assert receipt.verified_at is not None
        assert (receipt.bytes_left, receipt.dry_run) == (0, False)
        assert receipt.scanned_bytes > 0
        assert receipt.counts["episode"] >= 1
        assert receipt.counts["fact"] >= 3
        left = bytes_of(path).lower()
        for trace in (b"alice", b"marchmont", b"quimby", b"warfarin", b"crescent"):
            assert trace not in left
        assert memory.verify_chain().ok
        assert {f.value for f in mem.facts()} == {"turnips"}
        assert len(mem.recall("alice marchmont")) == 0
        assert b"turnips" in left


def test_a_dry_run_counts_and_leaves_all(mem: Space) -> None:
    fill(mem)
    before = mem.tx
    receipt = mem.erase(subject="alice", dry_run=True)
    assert (receipt.dry_run, receipt.tx, receipt.verified_at) == (True, None, None)
    assert receipt.counts["episode"] >= 1
    assert "alice" not in receipt.selector
    assert mem.tx == before
    assert "alice" in {f.subject for f in mem.facts()}


def test_an_episode_takes_what_was_made_from_it_alone(mem: Space) -> None:
    ids = fill(mem)
    other = mem.record("Alice again: 12 Marchmont Crescent")
    mem.erase(episode=ids["episode"])
    with pytest.raises(NotFound):
        mem.fact(ids["fact"])
    with pytest.raises(NotFound):
        mem.fact(ids["child"])
    assert mem.episode(other.id).status is Status.ACTIVE


def test_a_fact_with_other_words_stays(mem: Space) -> None:
    one, two = mem.record("The port is 8080"), mem.record("8080, as I said")
    fact = mem.remember("app", "port", 8080, evidence=[one.id, two.id])
    mem.erase(episode=one.id)
    assert mem.fact(fact.id).status is Status.ACTIVE
    assert len(mem.explain(fact).evidence) == 1
    mem.retract(two.id, "no")
    assert mem.fact(fact.id).status is Status.SUSPENDED


def test_a_session_is_erased(mem: Space, path: Path) -> None:
    mem.record("the pomegranate protocol", session="private")
    mem.record("something else entirely", session="open")
    mem.erase(session="private")
    assert [e.session for e in mem.episodes()] == ["open"]
    assert b"pomegranate" not in bytes_of(path)


@pytest.mark.parametrize("name", ["Zoë", "Ann-Marie", "Jo Ann", "O'Neil", "x_y"])
def test_names_of_all_kinds_are_found(mem: Space, path: Path, name: str) -> None:
    mem.record(f"Then {name.upper()} called about the pomegranate.")
    mem.record(f"{name}'s pomegranate order")
    mem.record("Joanna and Zoology and xzy stay")
    mem.remember("order", "by", name)
    mem.erase(subject=name)
    assert [e.content for e in mem.episodes()] == ["Joanna and Zoology and xzy stay"]
    assert mem.facts() == []
    assert b"pomegranate" not in bytes_of(path)


def test_a_single_fact_is_erased_with_its_own_words(mem: Space, path: Path) -> None:
    fact = mem.remember("user", "password hint", "pomegranate season")
    mem.erase(fact=fact.id)
    assert mem.facts() == []
    assert b"pomegranate" not in bytes_of(path)


def test_erasing_reaches_all_branches(mem: Space, path: Path) -> None:
    fill(mem)
    mem.watermark("snap_1")
    child = mem.fork("hermes-2")
    child.record("Alice called about the Marchmont keys")
    mem.on_restore("snap_1", "rewind")
    mem.erase(subject="alice")
    assert all("lice" not in e.content for e in child.episodes())
    assert b"marchmont" not in bytes_of(path).lower()
    mem.on_restore("snap_1")
    assert {f.value for f in mem.facts()} == {"turnips"}


def test_other_agents_memories_stay(memory: Memory, mem: Space) -> None:
    fill(mem)
    other = memory.space("other")
    kept = other.record("Alice is my neighbour")
    receipt = mem.erase(subject="alice")
    assert other.episode(kept.id).content == "Alice is my neighbour"
    assert receipt.bytes_left == 0, "what lives elsewhere by right is no trace"


def test_roles_are_not_names(mem: Space) -> None:
    mem.record("the user manual is in the drawer")
    mem.remember("user", "name", "Ada")
    mem.erase(subject="user")
    assert [e.content for e in mem.episodes()] == ["the user manual is in the drawer"]
    assert mem.facts() == []


def test_an_effect_stays_done_but_not_its_words(mem: Space, path: Path) -> None:
    mem.record("alice wrote")
    mem.effect("mail-alice-1", "answered alice about her warfarin")
    mem.erase(subject="alice")
    assert b"alice" not in bytes_of(path)
    assert not mem.effect("mail-alice-1", "answer again").fresh
    assert [e.what for e in mem.effects()] == ["erased"]


def test_exports_are_searched(mem: Space, memory: Memory, tmp_path: Path) -> None:
    fill(mem)
    memory.export(tmp_path / "old.jsonl")
    receipt = mem.erase(subject="alice", exports=[tmp_path / "old.jsonl"])
    assert receipt.exports_left > 0
    assert receipt.bytes_left == 0
    before = mem.tx
    with pytest.raises(NotFound, match=r"old\.json does not exist"):
        mem.erase(subject="bob", exports=[tmp_path / "old.json"])
    assert mem.tx == before
    memory.export(tmp_path / "new.jsonl")
    assert b"alice" not in (tmp_path / "new.jsonl").read_bytes().lower()


def test_long_content_is_searched_in_pieces(mem: Space, path: Path) -> None:
    text = " ".join(f"uniqueword{n}" for n in range(20_000))
    made = mem.record(text)
    receipt = mem.erase(episode=made.id)
    assert receipt.bytes_left == 0
    assert b"uniqueword" not in bytes_of(path)


def test_a_reader_that_holds_the_log_is_told(path: Path) -> None:
    import sqlite3

    with Memory.open(path, busy_timeout_s=0.05) as memory:
        mem = memory.space("a")
        made = mem.record("the pomegranate protocol is secret")
        reader = sqlite3.connect(path)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM txn").fetchone()
        receipt = mem.erase(episode=made.id)
        assert receipt.verified_at is None
        assert receipt.bytes_left > 0
        reader.close()
        checked = mem.verify_erasure(receipt.id)
        assert checked.verified_at is not None
        with pytest.raises(NotFound):
            mem.verify_erasure(receipt.id)
        assert b"pomegranate" not in bytes_of(path)


@pytest.mark.parametrize(
    "selector", [{}, {"fact": "a", "episode": "b"}, {"subject": ""}, {"subject": "two\nlines"}]
)
def test_a_selector_names_one_thing(mem: Space, selector: dict[str, Any]) -> None:
    fill(mem)
    with pytest.raises(InvalidRequest):
        mem.erase(**selector)


def test_an_id_that_is_not_there_is_said(mem: Space) -> None:
    fill(mem)
    before = mem.tx
    for selector in ({"fact": "fact_x"}, {"episode": "ep_x"}, {"session": "none"}):
        with pytest.raises(NotFound):
            mem.erase(**selector)  # type: ignore[arg-type]
    assert mem.tx == before


def test_a_name_that_nothing_has_gives_a_receipt_that_counts_nothing(mem: Space) -> None:
    fill(mem)
    held = mem.facts()
    assert set(mem.erase(subject="nobody", dry_run=True).counts.values()) == {0}
    receipt = mem.erase(subject="nobody")
    assert set(receipt.counts.values()) == {0}
    assert (receipt.bytes_left, receipt.verified_at is not None) == (0, True)
    assert mem.facts() == held


@pytest.mark.parametrize("word", ["branch", "decision", "table", "recall", "superseded", "world"])
def test_words_that_every_memory_has_are_no_trace(mem: Space, word: str) -> None:
    mem.record(f"the {word} of pomegranates")
    receipt = mem.erase(subject=word)
    assert (receipt.counts["episode"], receipt.bytes_left) == (1, 0)


def test_a_name_is_found_wherever_it_can_stand(mem: Space, path: Path) -> None:
    for told in (
        "Zoe\u0308 called",
        "ZO\u00cb called",
        "Jo \n Ann called",
        "the STRASSE is closed",
    ):
        mem.record(told)
    mem.record("the weather is fine", session="chat with alice")
    mem.record("the dinner was good", subjects=["alice smith"])
    mem.effect("mail-7", "sent the invoice")
    mem.finish_effect("mail-7", "alice has it")
    mem.fork("hermes-2", reason="alice asked for it")
    for name in ("Zo\u00eb", "jo ann", "Stra\u00dfe", "alice"):
        assert mem.erase(subject=name).bytes_left == 0
    assert mem.episodes() == []
    assert b"alice" not in bytes_of(path)
    assert [(e.key, e.what, e.outcome) for e in mem.effects()] == [
        ("mail-7", "sent the invoice", "erased")
    ]


def test_names_of_agents_and_writers_are_no_trace(memory: Memory) -> None:
    mem = memory.space("alice", actor="human:alice")
    mem.record("alice likes tea")
    memory.space("other").record("turnips", reason="as alice said")
    receipt = mem.erase(subject="alice")
    assert (receipt.bytes_left, receipt.counts["episode"]) == (0, 1)


def test_what_a_killed_erasure_left_goes_when_memory_is_opened(path: Path) -> None:
    with Memory.open(path) as memory:
        memory.space("a").record("the pomegranate protocol is secret")
    code = (
        "import os, sys\n"
        "from torpor.memory import Memory\n"
        "memory = Memory.open(sys.argv[1])\n"
        "memory.store.scrub = lambda: os._exit(9)\n"
        "memory.space('a').erase(subject='pomegranate')\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    assert b"pomegranate" in bytes_of(path)
    with Memory.open(path) as memory:
        assert memory.space("a").episodes() == []
        assert b"pomegranate" not in bytes_of(path)
        assert memory.space("a").erase(subject="pomegranate").verified_at is not None


def test_a_disk_that_fills_up_after_an_erasure_leaves_its_proof_for_later(
    memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mem = memory.space("a")
    mem.record("the pomegranate protocol is secret")

    def full() -> None:
        raise InsufficientResources("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(memory.store, "scrub", full)
        receipt = mem.erase(subject="pomegranate")
    assert receipt.verified_at is None
    assert receipt.bytes_left > 0
    assert mem.episodes() == []
    assert mem.verify_erasure(receipt.id).bytes_left == 0
    assert b"pomegranate" not in bytes_of(path)


def test_tombstones_hold_no_text_and_no_ids(mem: Space, memory: Memory) -> None:
    ids = fill(mem)
    mem.erase(subject="alice")
    tombs = list(memory._store.stream(TombstoneRow))
    assert len(tombs) > 3
    assert not {t.row for t in tombs} & set(ids.values())
