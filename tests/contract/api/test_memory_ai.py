"""The parts for Pydantic AI with `sandbox.memory`, offline: the model is a function."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("pydantic_ai", reason="the extra torpor[memory-ai] is not installed")

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from torpor import Sandbox
from torpor.memory.capability import MemoryCapability
from torpor.memory.extract.model import PydanticAIExtractor

pytestmark = pytest.mark.usefixtures("server")


def test_a_capability_on_a_sandbox_s_memory() -> None:
    mem = Sandbox.create(metadata={"agent": "hermes-1"}).memory
    known = mem.remember("billing", "database", "Postgres", authority="user_said")
    said: list[str] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        assert "Postgres" in str(info.instructions) or said
        last = messages[-1].parts[-1]
        if last.part_kind == "tool-return":
            said.append(str(last.content))
        steps = [
            ToolCallPart("remember", {"subject": "app", "attribute": "port", "value": "80"}),
            ToolCallPart("recall", {"query": "app port"}),
            ToolCallPart("why", {"fact_id": known.id}),
            ToolCallPart("correct", {"fact_id": known.id, "value": "SQLite", "reason": "misheard"}),
            ToolCallPart("forget", {"fact_id": "fact_missing", "reason": "x"}),
        ]
        if len(said) < len(steps):
            return ModelResponse(parts=[steps[len(said)]])
        return ModelResponse(parts=[TextPart("It is on port 80.")])

    agent: Agent[None, str] = Agent(
        FunctionModel(answer), capabilities=[MemoryCapability(space=mem, session="run-1")]
    )
    assert asyncio.run(agent.run("which database has billing?")).output == "It is on port 80."
    assert said[0].startswith("kept as fact_")
    assert "port = 80" in said[1]
    assert "Postgres" in said[2]
    assert said[3].startswith("corrected by fact_")
    assert said[4].startswith("refused:")
    assert [(e.source_kind, e.content) for e in mem.episodes("run-1")] == [
        ("user", "which database has billing?"),
        ("agent", "It is on port 80."),
    ]
    assert {f.value for f in mem.facts("billing")} == {"SQLite"}


def test_an_extractor_runs_in_the_client() -> None:
    mem = Sandbox.create().memory
    episode = mem.record("We moved the billing data to Postgres last week.")
    fact = {
        "record": 0,
        "subject": "billing",
        "attribute": "database",
        "value": "Postgres",
        "quote": "billing data to Postgres",
    }

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        facts = [fact, {**fact, "quote": "billing data to Oracle"}]
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"facts": facts})])

    extractor = PydanticAIExtractor(FunctionModel(answer))
    plan = mem.consolidate(extractor=extractor)
    assert [i.action for i in plan.items] == ["new", "rejected"]
    (found,) = mem.facts()
    told = mem.explain(found)
    assert told.evidence[0].episode == episode.id  # type: ignore[union-attr]
    assert mem.consolidate(extractor=extractor).items == ()
