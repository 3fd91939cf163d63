from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.memory.clock import FakeClock, day
from tests.unit.memory.fakes import FakeEmbedder
from torpor.errors import InsufficientResources, InvalidRequest, LimitExceeded, NotFound
from torpor.memory import Memory, Recall, Space
from torpor.memory import recall as recalling
from torpor.memory.rows import RecallItemRow, RecallRow
from torpor.memory.words import MAX_TERMS, covers, stems_of


@pytest.fixture
def dense(tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    with Memory.open(tmp_path / "d.db", clock=clock, embedder=FakeEmbedder()) as memory:
        yield memory


def texts(found: Recall) -> list[str]:
    return [i.text for i in found]


def test_the_best_match_comes_first(mem: Space) -> None:
    mem.record("The deploy script lives in tools/deploy.sh", session="a")
    mem.record("Lunch was fine", session="b")
    mem.record("Someone mentioned a script", session="c")
    found = mem.recall("where is the deploy script?")
    assert texts(found)[0] == "The deploy script lives in tools/deploy.sh"
    assert "Lunch was fine" not in texts(found)
    assert found.abstained is None


def test_only_what_holds_is_given_and_the_rest_is_counted(mem: Space, clock: FakeClock) -> None:
    mem.remember("billing", "database", "Postgres", valid_from=day(-9))
    mem.remember("billing", "database", "SQLite", valid_from=day(-1))
    found = mem.recall("billing database")
    assert texts(found) == ["billing: database = SQLite"]
    assert found.suppressed_superseded == 1
    old = mem.recall("billing database", valid_at=day(-5))
    assert texts(old) == ["billing: database = Postgres"]
    both = mem.recall("billing database", include=["superseded"])
    assert len(both) == 2
    assert "no longer holds" in both.items[-1].note or "no longer holds" in both.items[0].note


def test_an_episode_does_not_bring_a_replaced_value_back(mem: Space) -> None:
    mem.record("My editor is vim.", occurred_at=day(-9))
    mem.consolidate()
    mem.record("My editor is emacs.", occurred_at=day(-1))
    mem.consolidate()
    found = mem.recall("which editor?")
    assert texts(found) == ["My editor is emacs."]
    assert found.suppressed_superseded == 2, "the old fact and the old words"


def test_words_that_hold_only_in_part_say_so(mem: Space) -> None:
    mem.record("My editor is vim. My shell is fish.", occurred_at=day(-9))
    mem.consolidate()
    mem.record("My editor is emacs.", occurred_at=day(-1))
    mem.consolidate()
    (item,) = mem.recall("editor", kinds=["episode"], exclude=[mem.episodes()[1].id]).items
    assert item.text == "My editor is vim. My shell is fish."
    assert "partly outdated" in item.note


def test_recall_at_an_earlier_knowledge(mem: Space) -> None:
    mem.remember("app", "port", 1, valid_from=day(-9))
    then = mem.tx
    mem.remember("app", "port", 2, valid_from=day(-5))
    assert texts(mem.recall("app port", known_at=then)) == ["app: port = 1"]
    assert texts(mem.recall("app port")) == ["app: port = 2"]


def test_neighbours_in_a_session_help_each_other(mem: Space) -> None:
    mem.record("Did the zeppelin flight go well?", session="s")
    answer = mem.record("Yes, we landed at noon.", session="s")
    mem.record("Yes, we landed at noon.", session="elsewhere")
    found = mem.recall("zeppelin flight")
    assert answer.id in [i.id for i in found]
    assert len(found) == 2
    item = next(i for i in found if i.id == answer.id)
    assert item.neighbour > 0
    assert item.bm25 == 0


def test_standing_facts_come_first_within_their_share(mem: Space) -> None:
    for n in range(10):
        mem.remember("team", f"rule {n}", f"do thing {n}", kind="instruction")
    mem.remember("pasta", "sauce", "pesto")
    pinned = mem.remember("user", "allergy", "nuts")
    mem.pin(pinned.id)
    found = mem.recall("pasta sauce", k=6, token_budget=300)
    assert found.items[0].id == pinned.id
    assert [i.why for i in found].count("standing") == 2
    assert "pasta: sauce = pesto" in texts(found)
    mem.pin(pinned.id, pinned=False)
    assert mem.recall("pasta sauce").items[0].id != pinned.id


def test_a_decision_about_the_query_comes_before_other_decisions(mem: Space) -> None:
    mem.remember("billing", "use", "Postgres", kind="decision")
    for n in range(20):
        mem.remember("team", f"topic {n}", f"choice {n}", kind="decision")
    found = mem.recall("billing")
    assert found.items[0].text == "billing: use = Postgres"


def test_it_abstains_and_says_why(mem: Space) -> None:
    assert mem.recall("anything").abstained is not None
    mem.record("The deploy script lives in tools/deploy.sh")
    found = mem.recall("price of tea in China")
    assert len(found) == 0
    assert found.abstained == "nothing in memory has to do with the query"
    mem.remember("app", "port", 1, valid_from=day(-9), valid_to=day(-8))
    found = mem.recall("app port")
    assert found.abstained is not None
    assert "expired" in found.abstained
    assert found.suppressed == {"expired": 1}


def test_standing_facts_alone_are_no_answer(mem: Space) -> None:
    mem.remember("team", "rule", "be brief", kind="instruction")
    found = mem.recall("airspeed of a swallow")
    assert [i.why for i in found] == ["standing"]
    assert found.abstained is not None


def test_the_token_budget_and_k_are_kept(mem: Space) -> None:
    for n in range(30):
        mem.record(f"note {n} about the garden and its many flowers", session=str(n))
    found = mem.recall("garden flowers", k=30, token_budget=50)
    assert found.tokens <= 50
    assert found.tokens == sum(i.tokens for i in found)
    assert 0 < len(found) < 30
    assert found.suppressed["budget"] > 0
    assert len(mem.recall("garden flowers", k=3)) == 3


def test_staleness_and_authority_are_said(mem: Space, clock: FakeClock) -> None:
    mem.remember("app", "port", 1)
    clock.advance(days=94, seconds=1)
    assert mem.recall("app port").items[0].note == ("agent inference, last confirmed 94 days ago")


def test_disputed_facts_are_both_given_and_flagged(mem: Space) -> None:
    mem.remember("user", "home", "Rome", authority="user_said", valid_from=day(-9))
    mem.remember("user", "home", "Oslo", valid_from=day(-1))
    found = mem.recall("user home")
    assert len(found) == 2
    assert all(i.disputed and "disputed" in i.note for i in found)


def test_kinds_scopes_and_exclusions_narrow_it(mem: Space) -> None:
    fact = mem.remember("garden", "tool", "spade", scope="machine")
    episode = mem.record("the garden has a tool shed")
    assert [i.id for i in mem.recall("garden tool", kinds=["episode"])] == [episode.id]
    assert [i.id for i in mem.recall("garden tool", kinds=["fact"])] == [fact.id]
    assert [i.id for i in mem.recall("garden tool", exclude=[fact.id])] == [episode.id]
    found = mem.recall("garden tool", kinds=["fact"], scopes=["world"])
    assert len(found) == 0
    assert found.suppressed == {"kind": 1, "scope": 1}


def test_recalled_text_is_not_recalled(mem: Space) -> None:
    mem.record("the garden has a gate", "recalled")
    assert len(mem.recall("garden gate")) == 0


def test_retracted_words_are_not_given(mem: Space) -> None:
    episode = mem.record("the garden has a gate")
    mem.retract(episode.id, "wrong garden")
    assert len(mem.recall("garden gate")) == 0
    mem.restore(episode.id)
    assert len(mem.recall("garden gate")) == 1


@pytest.mark.parametrize(
    ("query", "more", "error"),
    [
        ("", {}, InvalidRequest),
        ("x", {"k": 0}, InvalidRequest),
        ("x", {"token_budget": -1}, InvalidRequest),
        ("x", {"include": ["nonsense"]}, InvalidRequest),
        ("x" * 40_000, {}, LimitExceeded),
    ],
)
def test_wrong_requests_are_refused(
    mem: Space, query: str, more: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        mem.recall(query, **more)


@pytest.mark.parametrize("query", ['"', "NEAR(a b)", "a AND", "text:secret", "*", "🙂", "-- ;"])
def test_a_query_is_never_syntax(mem: Space, query: str) -> None:
    mem.record("plain words about a garden")
    assert mem.recall(query).query == query


def test_a_recall_is_explained_from_its_log(mem: Space) -> None:
    mem.record("We decided to use Postgres for billing, not SQLite.")
    mem.consolidate()
    found = mem.recall("which database for billing?", k=5, token_budget=400)
    told = mem.explain(found)
    assert told.query == "which database for billing?"
    assert [c.id for c in told.considered if c.injected] == [i.id for i in found]
    assert {c.dropped_because for c in told.considered if not c.injected} == {"duplicate"}
    assert told.facts[0].evidence[0].text == "We decided to use Postgres for billing, not SQLite."
    assert told.weights["neighbour"] == 0.25
    assert mem.explain(found.id) == told
    with pytest.raises(NotFound):
        mem.explain("rcl_missing")


def test_why_not_names_the_reason(mem: Space) -> None:
    old = mem.remember("billing", "database", "Postgres", valid_from=day(-9))
    new = mem.remember("billing", "database", "SQLite", valid_from=day(-1))
    other = mem.remember("garden", "tool", "spade")
    query = "billing database"
    assert mem.why_not(new.id, query).reason == "recalled"
    told = mem.why_not(old.id, query)
    assert (told.reason, told.replaced_by) == ("superseded", new.id)
    assert mem.why_not(other.id, query).reason == "score"
    assert mem.why_not(new.id, query, token_budget=1).reason == "budget"
    mem.correct(new.id, "DuckDB", "misheard")
    assert mem.why_not(new.id, query).reason == "superseded"
    mem.retract(other.id, "gone")
    assert mem.why_not(other.id, "garden tool").reason == "retracted"
    assert mem.why_not(other.id, "unrelated").reason == "retracted"
    with pytest.raises(NotFound):
        mem.why_not("fact_missing", query)


def test_why_not_leaves_no_log(mem: Space) -> None:
    fact = mem.remember("a", "b", "c")
    store = mem._line.store
    from torpor.memory.rows import RecallRow

    mem.why_not(fact.id, "a b")
    assert store.count(RecallRow, {}) == 0
    mem.recall("a b")
    assert store.count(RecallRow, {}) == 1


def test_the_log_keeps_the_last_recalls_of_each_agent(
    memory: Memory, mem: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recalling, "RECALLS_KEPT", 3)
    monkeypatch.setattr(recalling, "TRIM_EVERY", 2)
    mem.remember("a", "b", "c")
    other = memory.space("other").recall("a b")
    made = [mem.recall("a b") for _ in range(9)]
    for kept in made[-3:]:
        assert mem.explain(kept).considered
    with pytest.raises(NotFound):
        mem.explain(made[0])
    assert memory.space("other").explain(other)
    store = memory.store
    logs = {r.id for r in store.select(RecallRow, {})}
    assert {i.recall for i in store.select(RecallItemRow, {})} <= logs
    assert len(logs) <= 5


def test_a_recall_is_given_though_it_cannot_be_logged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory.open(path) as one, Memory.open(path) as two:
        mem, writer = one.space("a"), two.store
        mem.record("the pomegranate protocol")
        with writer.transaction():
            found = mem.recall("pomegranate")
        assert texts(found) == ["the pomegranate protocol"]
        assert not found.logged
        with pytest.raises(NotFound):
            mem.explain(found)
        assert mem.recall("pomegranate").logged

        def full(rows: object) -> None:
            raise InsufficientResources("no space left")

        with monkeypatch.context() as patched:
            patched.setattr(one.store, "log", full)
            assert not mem.recall("pomegranate").logged


def test_long_texts_and_queries_are_bounded(mem: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = recalling.excerpt

    def counted(text: str, terms: list[str], limit_chars: int) -> str:
        asked.append(len(terms))
        return real(text, terms, limit_chars)

    monkeypatch.setattr(recalling, "excerpt", counted)
    mem.record("filler " * 100_000 + "the pomegranates ripen " + "filler " * 40_000)
    query = "pomegranate ripening " + " ".join(f"q{n}" for n in range(30)) + " the and" * 3000
    found = mem.recall("pomegranate ripening")
    assert "the pomegranates ripen" in found.items[0].text
    assert len(found.items[0].text) < 2000
    mem.recall(query[:32_000])
    assert asked
    assert max(asked) <= MAX_TERMS


@pytest.mark.parametrize("long", [False, True])
def test_how_much_of_a_query_a_text_has(long: bool) -> None:
    text = "They were deploying scripts. " + "filler " * (5000 if long else 5)
    stems = stems_of(["deployed", "script", "server", "friday"])
    assert covers(text, stems, 0.5)
    assert not covers(text, stems, 0.51)
    assert not covers("nothing of it", stems, 0.25)


def test_meaning_finds_what_words_do_not(dense: Memory) -> None:
    mem = dense.space("a")
    mem.record("A kitten sleeps on the sofa", session="1")
    mem.record("The vehicle is in the garage", session="2")
    found = mem.recall("feline?")
    assert texts(found) == ["A kitten sleeps on the sofa"]
    assert found.items[0].dense > 0.35


def test_vectors_of_another_model_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with Memory.open(path, embedder=FakeEmbedder("one@1")) as memory:
        memory.space("a").record("A kitten sleeps on the sofa")
    other = FakeEmbedder("two@1")
    with Memory.open(path, embedder=other) as memory:
        space = memory.space("a")
        assert len(space.recall("feline")) == 0
        assert memory.embed_missing() == 1
        assert memory.embed_missing() == 0
        assert len(space.recall("feline")) == 1


def test_memory_without_vectors_gets_them_later(path: Path) -> None:
    with Memory.open(path) as memory:
        mem = memory.space("a")
        mem.record("A kitten sleeps")
        mem.remember("the car", "colour", "red")
    with Memory.open(path, embedder=FakeEmbedder()) as memory:
        assert memory.embed_missing(batch=1) == 2, "the fact's own episode is not searched"
        assert len(memory.space("a").recall("feline")) == 1
        assert len(memory.space("a").recall("vehicle")) == 1


def test_two_processes_see_what_the_other_wrote(path: Path) -> None:
    with Memory.open(path) as one, Memory.open(path) as two:
        a, b = one.space("a"), two.space("a")
        a.record("first words about gardens")
        assert len(b.recall("gardens")) == 1
        b.record("second words about gardens")
        assert len(a.recall("gardens")) == 2
        a.erase(episode=a.episodes()[0].id)
        assert len(b.recall("gardens")) == 1
