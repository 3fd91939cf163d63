"""The suite that every store must pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.errors import Conflict, InvalidRequest, LimitExceeded
from torpor.memory.rows import DerivationRow, RecallItemRow, RecallRow, Txn, VectorRow
from torpor.memory.sqlite import SqliteStore
from torpor.memory.store import Contains, Range, Scope, Store


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store
    if request.param == "sqlite":
        opened = SqliteStore(tmp_path / "s.db")
    else:
        opened = request.getfixturevalue("postgres")()
    yield opened
    opened.close()


def derivation(n: int, tx: int = 1, branch: str = "b") -> DerivationRow:
    return DerivationRow(f"id{n}", tx, branch, f"child{n % 3}", f"parent{n}", b"salt")


def txn(tx: int, reason: str = "why") -> Txn:
    return Txn(tx, tx * 10, "me", "test", "b", reason, b"s", "d", "r", "p", "h")


def test_a_committed_transaction_is_read_back_in_order(store: Store) -> None:
    rows = [derivation(n) for n in range(5)]
    with store.transaction():
        for row in rows:
            store.insert(row)
    assert store.select(DerivationRow, {}) == rows
    assert list(store.stream(DerivationRow)) == rows
    assert store.newest(DerivationRow, {"child": "child1"}) == rows[4]
    assert store.count(DerivationRow, {"child": "child0"}) == 2


def test_nothing_of_a_failed_transaction_remains(store: Store) -> None:
    def write() -> None:
        with store.transaction():
            store.insert(derivation(1))
            store.index("o", "fact", "b", "", 1, "some words")
            store.set_meta("k", "v")
            store.put_vector(VectorRow("o", "m", 1, "float16", b"xx"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert store.select(DerivationRow, {}) == []
    assert store.documents([Scope("b", 9)], 0) == []
    assert store.bm25(["words"], [Scope("b", 9)], 5) == []
    assert store.meta("k") is None
    assert store.vectors("m", ["o"]) == {}


def test_an_inner_transaction_is_part_of_the_outer_one(store: Store) -> None:
    def write() -> None:
        with store.transaction():
            with store.transaction():
                store.insert(derivation(1))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert store.count(DerivationRow, {}) == 0


def test_conditions_are_equality_none_lists_and_ranges(store: Store) -> None:
    with store.transaction():
        for n in range(1200):
            store.insert(derivation(n, tx=n))
    assert len(store.select(DerivationRow, {"tx": Range(10, 19)})) == 10
    assert len(store.select(DerivationRow, {"tx": Range(low=1190)})) == 10
    assert len(store.select(DerivationRow, {"id": [f"id{n}" for n in range(1200)]})) == 1200
    assert store.select(DerivationRow, {"id": []}) == []
    assert store.select(DerivationRow, {"id": ["id7"], "child": "child1"}) == [derivation(7, 7)]
    assert store.select(DerivationRow, {"id": ["id7"], "child": "child2"}) == []
    assert len(store.select(DerivationRow, {}, limit=3)) == 3


def test_text_is_found_in_the_middle_whatever_its_case(store: Store) -> None:
    with store.transaction():
        for n, text in enumerate(("has Alice in it", "ALICE", "malice", "none", "50%_~ off")):
            store.insert(derivation(n)._replace(child=text))

    def found(text: str) -> list[str]:
        return [r.child for r in store.select(DerivationRow, {"child": Contains(text)})]

    assert found("alice") == ["has Alice in it", "ALICE", "malice"]
    assert found("%_~") == ["50%_~ off"]
    assert found("_o") == []
    assert [
        r.child for r in store.select(DerivationRow, {"id": Range("id3", "id3\U0010ffff")})
    ] == ["none"]


def test_stream_gives_all_rows_across_batches(store: Store) -> None:
    with store.transaction():
        for n in range(2500):
            store.insert(derivation(n))
    assert [r.id for r in store.stream(DerivationRow)] == [f"id{n}" for n in range(2500)]


def test_two_rows_of_one_id_are_refused(store: Store) -> None:
    def write() -> None:
        with store.transaction():
            store.insert(derivation(1))
            store.insert(derivation(1))

    with pytest.raises(Conflict):
        write()
    assert store.count(DerivationRow, {}) == 0


def test_ids_and_numbers_that_no_row_can_have_are_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="Unicode"):
        store.select(DerivationRow, {"id": "fact_\ud800"})

    def write() -> None:
        with store.transaction():
            store.insert(derivation(1, tx=10**30))

    with pytest.raises(InvalidRequest):
        write()
    assert store.count(DerivationRow, {}) == 0


def test_last_tx_and_blanked_reasons(store: Store) -> None:
    assert store.last_tx() == 0
    with store.transaction():
        store.insert(txn(1))
        store.insert(txn(2))
        store.blank_reason(1)
    assert store.last_tx() == 2
    assert [(t.reason, t.salt) for t in store.stream(Txn)] == [(None, None), ("why", b"s")]


def test_search_ranks_by_bm25_within_scopes(store: Store) -> None:
    with store.transaction():
        store.index("a", "fact", "b", "", 1, "the cat sat on the mat")
        store.index("c", "fact", "b", "", 2, "cats and cats and cats: a catalogue of cats")
        store.index("d", "fact", "other", "", 3, "a cat elsewhere")
        store.index("e", "fact", "b", "", 9, "a later cat")
    docs = {d.doc: d.owner for d in store.documents([Scope("b", 5), Scope("other", 9)], 0)}
    assert sorted(docs.values()) == ["a", "c", "d"]
    found = store.bm25(["cat"], [Scope("b", 5)], 10)
    assert {docs[d] for d, _ in found} == {"a", "c"}
    assert [s for _, s in found] == sorted((s for _, s in found), reverse=True)
    assert all(s > 0 for _, s in found) or len(found) == 2
    assert store.bm25(["dog"], [Scope("b", 5)], 10) == []
    assert store.bm25([], [Scope("b", 5)], 10) == []
    assert store.bm25(['"; DROP', "OR", "NEAR("], [Scope("b", 5)], 10) == []


def test_documents_come_after_a_number(store: Store) -> None:
    with store.transaction():
        for n in range(4):
            store.index(f"o{n}", "episode", "b", "s", n, "x")
    first = store.documents([Scope("b", 9)], 0)
    assert store.documents([Scope("b", 9)], first[1].doc) == first[2:]


def test_unindexed_text_is_not_found_again(store: Store) -> None:
    with store.transaction():
        store.index("a", "fact", "b", "", 1, "peculiar words")
        store.index("a", "fact", "child", "", 2, "peculiar words")
    with store.transaction():
        assert store.unindex("a", "peculiar words") == 2
    assert store.bm25(["peculiar"], [Scope("b", 9), Scope("child", 9)], 5) == []


def test_vectors_belong_to_one_model_and_the_last_one_counts(store: Store) -> None:
    with store.transaction():
        store.put_vector(VectorRow("a", "m1", 1, "float16", b"11"))
        store.put_vector(VectorRow("a", "m2", 1, "float16", b"22"))
        store.put_vector(VectorRow("a", "m1", 1, "float16", b"33"))
    assert store.vectors("m1", ["a", "missing"]) == {"a": b"33"}
    assert store.vectors("m2", ["a"]) == {"a": b"22"}


def test_a_log_is_kept_alone_and_within_a_transaction(store: Store) -> None:
    row = RecallItemRow("r", 1, "o", "fact", 1.0, 1.0, 0.0, 0.0, 0.0, 1, "")
    store.log([row])
    with store.transaction():
        store.log([row])
    assert store.count(RecallItemRow, {"recall": "r"}) == 2


def recall_row(n: int, agent: str) -> RecallRow:
    return RecallRow(f"rcl_{n}", n, "b", agent, "q", None, n, "{}", "", "{}", None)


def test_a_log_is_trimmed_by_agent(store: Store) -> None:
    for n in range(6):
        item = RecallItemRow(f"rcl_{n}", 1, "ep", "episode", 1.0, 1.0, 0.0, 0.0, 0.0, 1, "")
        store.log([recall_row(n, "one" if n % 2 else "two"), item])
    store.trim_log("one", 5)
    assert store.count(RecallRow, {}) == 6
    store.trim_log("one", 1)
    assert [r.id for r in store.select(RecallRow, {"agent": "one"})] == ["rcl_5"]
    assert store.count(RecallRow, {"agent": "two"}) == 3
    assert {r.recall for r in store.select(RecallItemRow, {})} == {
        "rcl_0",
        "rcl_2",
        "rcl_4",
        "rcl_5",
    }


def test_what_a_thread_reads_can_be_bounded(store: Store) -> None:
    with store.transaction():
        for n in range(50):
            store.insert(derivation(n))
    with store.reading_at_most(600), pytest.raises(LimitExceeded, match="over 600 bytes"):
        store.select(DerivationRow, {})
    with store.reading_at_most(600):
        assert store.select(DerivationRow, {"id": "id7"}) == [derivation(7)]
    assert len(store.select(DerivationRow, {})) == 50


def test_scrubbed_content_is_in_no_file(store: Store) -> None:
    secret = "xylophone quartz zephyr"
    with store.transaction():
        store.insert(derivation(1)._replace(child=secret))
        store.index("a", "fact", "b", "", 1, secret)
    assert store.scan([b"xylophone"]).hits > 0
    with store.transaction():
        store.delete(DerivationRow, "id", ["id1"])
        store.unindex("a", secret)
    store.scrub()
    assert store.scan([secret.encode(), b"xylophon", b"quartz"]).hits == 0


def test_a_store_grows(store: Store) -> None:
    before = store.size_bytes()
    with store.transaction():
        for n in range(3000):
            store.insert(derivation(n)._replace(child="x" * 200))
    store.scrub()
    assert store.size_bytes() > before > 0


def test_a_rebuilt_store_has_the_same_rows(store: Store) -> None:
    with store.transaction():
        store.insert(derivation(1))
        store.index("a", "fact", "b", "", 1, "some words")
    before = store.documents([Scope("b", 9)], 0)
    store.rebuild()
    assert store.select(DerivationRow, {}) == [derivation(1)]
    assert store.documents([Scope("b", 9)], 0) == before
    assert len(store.bm25(["words"], [Scope("b", 9)], 5)) == 1
