from __future__ import annotations

import json
from pathlib import Path

import httpx
import numpy as np
import pytest

from torpor.errors import HostNotReady, InvalidRequest
from torpor.memory import Memory
from torpor.memory.embed import minilm
from torpor.memory.embed.endpoint import Endpoint
from torpor.memory.embed.minilm import MiniLM


def vector(blob: bytes) -> np.ndarray:  # type: ignore[type-arg]
    return np.frombuffer(blob, np.float16).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> MiniLM:
    pytest.importorskip("onnxruntime", reason="the extra torpor[embed] is not installed")
    pytest.importorskip("tokenizers", reason="the extra torpor[embed] is not installed")
    made = MiniLM()
    try:
        made.embed(["load"])
    except HostNotReady as exc:
        pytest.skip(exc.message)
    return made


def test_the_model_knows_what_is_close(model: MiniLM) -> None:
    cat, feline, market = map(
        vector, model.embed(["the cat sat", "a feline rested", "stock market crash"])
    )
    assert float(cat @ feline) > 0.45 > float(cat @ market)
    assert len(cat) == model.dim
    assert abs(float(cat @ cat) - 1) < 0.01


def test_a_batch_gives_what_single_texts_give(model: MiniLM) -> None:
    texts = ["short", "a somewhat longer sentence about gardens", "x " * 2000, "", "🙂"]
    together = model.embed(texts)
    for text, blob in zip(texts, together, strict=True):
        alone = vector(model.embed([text])[0])
        assert float(alone @ vector(blob)) > 0.99


def test_a_file_that_is_not_the_pinned_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, model: MiniLM
) -> None:
    monkeypatch.setattr(minilm, "MODEL_SHA256", "0" * 64)
    with pytest.raises(HostNotReady, match="not the file that is pinned"):
        MiniLM().embed(["x"])


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch, model: MiniLM) -> None:
    monkeypatch.setattr(minilm, "_MODEL", ("no_such_package_anywhere", "model.onnx"))
    with pytest.raises(HostNotReady) as caught:
        MiniLM().embed(["x"])
    assert "torpor[embed]" in str(caught.value.hint)


def endpoint(handler: object, **more: object) -> Endpoint:
    return Endpoint(
        "http://embed.test/v1", "m", 2, transport=httpx.MockTransport(handler), **more  # type: ignore[arg-type]
    )  # fmt: skip


def test_an_endpoint_is_asked_in_the_openai_form() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "http://embed.test/v1/embeddings"
        assert request.headers["authorization"] == "Bearer key"
        given = json.loads(request.content)
        assert given["model"] == "m"
        data = [{"index": n, "embedding": [3.0, 4.0]} for n in range(len(given["input"]))]
        return httpx.Response(200, json={"data": data[::-1]})

    made = endpoint(answer, api_key="key").embed(["text"] * 130)
    assert len(made) == 130
    assert np.allclose(vector(made[0]), [0.6, 0.8], atol=1e-3)


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(401),
        httpx.Response(200, text="no json"),
        httpx.Response(200, json={"data": []}),
        httpx.Response(200, json={"data": [{"index": 0, "embedding": [1, 2, 3]}]}),
        httpx.Response(200, json={"nothing": 1}),
    ],
)
def test_a_wrong_answer_is_refused_and_nothing_is_written(
    path: Path, response: httpx.Response
) -> None:
    with Memory.open(path, embedder=endpoint(lambda _: response)) as memory:
        mem = memory.space("a")
        before = mem.tx
        with pytest.raises(HostNotReady):
            mem.record("words")
        assert mem.tx == before


@pytest.mark.parametrize("how", [httpx.Response(503), httpx.Response(429), None])
def test_words_are_kept_and_found_while_the_endpoint_is_away(
    path: Path, how: httpx.Response | None
) -> None:
    is_there = False

    def answer(request: httpx.Request) -> httpx.Response:
        if is_there:
            asked = json.loads(request.content)["input"]
            data = [{"index": n, "embedding": [1.0, 0.0]} for n in range(len(asked))]
            return httpx.Response(200, json={"data": data})
        if how is None:
            raise httpx.ConnectError("refused")
        return how

    with Memory.open(path, embedder=endpoint(answer)) as memory:
        mem = memory.space("a")
        mem.record("We decided to use Postgres for billing.")
        mem.consolidate()
        fact = mem.remember("app", "port", 80)
        mem.correct(fact.id, 81, "misread")
        found = mem.recall("billing Postgres")
        assert found.items
        assert found.words_only is not None
        assert mem.explain(found).model == ""
        is_there = True
        assert mem.recall("billing Postgres").words_only is None
        assert memory.embed_missing() == 4
        assert mem.recall("zebra").items[0].dense == 1.0


def test_an_endpoint_that_is_gone_is_said() -> None:
    def gone(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(HostNotReady, match="refused"):
        endpoint(gone).embed(["x"])
    with pytest.raises(InvalidRequest):
        Endpoint("ftp://x", "m", 2)
