from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.unit.memory.fakes import FakeEmbedder
from torpor.cli.app import app
from torpor.errors import DataDamaged, NotFound
from torpor.memory.bench import datasets, latency, retrieval, stream


def write(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


@pytest.fixture
def locomo(tmp_path: Path) -> Path:
    def turn(n: int, m: int, speaker: str, text: str, **more: str) -> dict[str, str]:
        return {"dia_id": f"D{n}:{m}", "speaker": speaker, "text": text, **more}

    sample = {
        "sample_id": "made-up",
        "conversation": {
            "speaker_a": "Ana",
            "session_2_date_time": "1:56 pm on 8 May, 2024",
            "session_2": [turn(2, 1, "Ana", "I adopted a kitten called Bolt.")],
            "session_1_date_time": "not a date",
            "session_1": [
                turn(1, 1, "Ana", "The weather is fine."),
                turn(1, 2, "Ben", "I sold my car.", blip_caption="an empty garage"),
            ],
        },
        "qa": [
            {"question": "Who has a kitten?", "evidence": ["D2:1"], "category": 1},
            {"question": "What did Ben sell?", "evidence": ["D1:1"], "category": 1},
            {"question": "Nothing resolves?", "evidence": ["D9:9"]},
            {"question": "No evidence?"},
        ],
        "observation": {"s1": {"Ben": [["Ben sold his car.", "D1:2"], ["Unresolved.", "D9:1"]]}},
    }
    write(tmp_path / "locomo10.json", [sample])
    write(
        tmp_path / "locomo_errors.json",
        [
            {"question_id": "locomo_0_qa1", "error_type": "WRONG_CITATION", "correct_evidence": ["D1:2"]},
            {"question_id": "locomo_0_qa0", "error_type": "WRONG_ANSWER", "correct_evidence": ["D1:1"]},
        ],
    )  # fmt: skip
    return tmp_path


def test_locomo_is_read_with_its_errata(locomo: Path) -> None:
    (made,) = datasets.locomo(locomo)
    assert [t.id for t in made.turns] == ["D1:1", "D1:2", "D2:1"]
    assert made.turns[1].text == "I sold my car. [shares a picture: an empty garage]"
    assert [q.gold for q in made.questions] == [{"D2:1"}, {"D1:2"}]
    assert made.facts == [("Ben", "Ben sold his car.", ("D1:2",))]


def test_retrieval_is_measured_by_evidence(locomo: Path) -> None:
    found = retrieval.measure(datasets.locomo(locomo), FakeEmbedder())
    assert found["questions"] == 2
    for name in ("episodes", "with_facts", "bm25", "dense", "rrf"):
        assert found[f"r_at_10_{name}"] == 1.0, name
    assert found["r_at_10_add_only"] == 0.5, "facts alone do not cover the kitten"
    without = retrieval.measure(datasets.locomo(locomo), None)
    assert "r_at_10_dense" not in without


def test_recall_that_misses_is_counted_as_missing(locomo: Path) -> None:
    (made,) = datasets.locomo(locomo)
    made.questions.append(datasets.Question("zebra?", frozenset({"D1:1"})))
    assert retrieval.measure([made], None)["r_at_10_bm25"] == pytest.approx(2 / 3, abs=1e-3)


def test_longmemeval_and_beam_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "lme.json",
        [
            {
                "question_id": "q1",
                "question": "Which pet?",
                "answer_session_ids": ["s2"],
                "haystack_session_ids": ["s1", "s2"],
                "haystack_sessions": [
                    [{"role": "user", "content": "hello"}],
                    [
                        {"role": "user", "content": "my pet is a cat", "has_answer": True},
                        {"role": "assistant", "content": "nice"},
                    ],
                ],
            }
        ],
    )
    (item,) = datasets.longmemeval(path)
    assert item.questions[0].gold == {"1:0"}
    assert [t.is_user for t in item.turns] == [True, True, False]
    folder = tmp_path / "beam" / "1"
    chat: list[dict[str, Any]] = [
        {"turns": [[{"id": 7, "role": "user", "content": "a"}, {"id": 8, "role": "assistant", "content": "b"}]]}
    ]  # fmt: skip
    write(folder / "chat.json", chat)
    write(
        folder / "probing_questions" / "probing_questions.json",
        {
            "knowledge_update": [
                {"question": "?", "source_chat_ids": {"updated_info": [7], "x": [99]}}
            ]
        },
    )
    (chat_read,) = datasets.beam(tmp_path / "beam")
    assert chat_read.questions[0].gold == {"7"}
    assert [t.id for t in chat_read.turns] == ["7", "8"]


def test_files_that_are_no_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "locomo10.json").write_text("{")
    with pytest.raises(DataDamaged):
        list(datasets.locomo(tmp_path))
    with pytest.raises(NotFound):
        list(datasets.longmemeval(tmp_path / "missing.json"))


def test_the_stream_is_the_same_for_a_seed_and_has_what_goes_wrong() -> None:
    first, again = list(stream.events(2000, 7)), list(stream.events(2000, 7))
    assert first == again != list(stream.events(2000, 8))
    kinds = {e.kind for e in first}
    assert kinds == {"claim", "late", "correct"}
    assert any(e.is_many for e in first)


def test_memory_makes_nothing_of_the_stream_wrong() -> None:
    found = stream.measure(300, None)
    wrong = {
        k: v
        for k, v in found.items()
        if k
        in (
            "superseded_as_current", "wrongly_retired", "superseded_recalled",
            "facts_from_recalled_text", "derived_left_after_retraction", "derived_not_revived",
            "erased_bytes_left",
        )
    }  # fmt: skip
    assert set(wrong.values()) == {0}, wrong
    assert found["chain_ok"] is True
    assert found["erased_rows"] > 0


def test_a_memory_that_forgets_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from torpor.memory import belief

    monkeypatch.setattr(belief, "displaces", lambda new, old, at: False)
    assert stream.measure(100, None)["shown_as_disputed"] > 0


def test_latency_has_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "RECALLS", 20)
    monkeypatch.setattr(latency, "COMMITS", 20)
    found = latency.measure(120, FakeEmbedder())
    wanted = {"recall_p50", "recall_p95", "commit_p95", "flush_p95", "recall_no_embedder_p50"}
    assert wanted <= set(found)
    assert all(v > 0 for v in found.values())


def test_the_command_prints_one_object(locomo: Path, tmp_path: Path) -> None:
    def bench(*words: str) -> Result:
        base = ["memory", "bench", "--json", "--updates", "100", "--size", "50", "--no-embedder"]
        return CliRunner().invoke(app, [*base, *words])

    found = json.loads(bench("--locomo", str(locomo)).stdout)
    assert set(found) >= {"locomo", "generated", "latency_ms", "weights", "notes"}
    assert set(found["locomo"]) >= {"r_at_10_episodes", "r_at_10_with_facts", "r_at_10_bm25"}
    assert "r_at_10_add_only" not in found["locomo"], "without an embedder it cannot be measured"
    assert set(found["latency_ms"]) == {"50"}
    refused = bench("--longmemeval", str(tmp_path / "none"))
    assert refused.exit_code == NotFound.exit_code
    assert "does not exist" in refused.stderr
