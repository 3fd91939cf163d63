"""`sandbox.memory` and `DaemonMemory`: the same scenario on a space of the daemon and on an embedded one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.serving import ServerThread
from torpor import AsyncDaemonMemory, AsyncSandbox, DaemonMemory, Memory, Sandbox
from torpor.errors import Conflict, DataDamaged, InvalidRequest, NotFound, WrongState
from torpor.memory.aio import AsyncSpace
from torpor.memory.files import MemoryFiles as EmbeddedFiles
from torpor.memory.space import Space
from torpor.model_memory import (
    Candidate,
    Episode,
    Explanation,
    FactExplanation,
    Interval,
    Plan,
    Policy,
    Receipt,
    Status,
)
from torpor.model_memory_inputs import EpisodeInput, FactInput
from torpor.sdk.daemon_memory import AsyncDaemonMemory as AsyncDaemon
from torpor.sdk.memory import AsyncMemorySpace
from torpor.sdk.memory_files import AsyncMemoryFiles
from torpor.sdk.sync_memory import MemoryFiles, MemorySpace

pytestmark = pytest.mark.usefixtures("server")

TEXT = "We decided to use Postgres for billing, not SQLite."


def at(year: int) -> datetime:
    return datetime(year, 1, 1, tzinfo=UTC)


class Eager:
    name = "eager@1"

    def extract(self, episodes: Sequence[Episode]) -> list[Candidate]:
        return [
            Candidate(e.id, "billing", "use", "Postgres", "use Postgres for billing")
            for e in episodes
            if "use Postgres for billing" in e.content
        ]


@pytest.fixture(params=["embedded", "daemon", "sandbox"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "embedded":
        with Memory.open(tmp_path / "agent.db") as memory:
            yield memory.space("hermes-1")
    elif request.param == "daemon":
        yield DaemonMemory().space("hermes-1")
    else:
        yield Sandbox.create(metadata={"agent": "hermes-1"}).memory


def test_a_wrong_fact_is_found_explained_corrected_and_stays_so(space: Any) -> None:
    episode = space.record(TEXT, source_kind="user", occurred_at=at(2026), subjects=["billing"])
    assert isinstance(episode, Episode)
    assert episode.occurred_at == at(2026)
    plan = space.consolidate(dry_run=True)
    assert isinstance(plan, Plan)
    assert space.facts() == []
    assert space.apply(plan, reason="looked at").tx == space.tx
    with pytest.raises(WrongState):
        space.apply(space.apply(plan))
    hits = space.recall("which database for billing?", k=5, token_budget=400)
    assert [i.text for i in hits] == [TEXT]
    why = space.explain(hits)
    assert isinstance(why, Explanation)
    assert why.facts[0].evidence[0].episode == episode.id
    wrong = hits.items[0].id
    assert isinstance(space.explain(wrong), FactExplanation)
    right = space.correct(wrong, value="SQLite", reason="user corrected me")
    assert [i.action for i in space.consolidate(extractor=Eager()).items] == ["known"]
    assert [f.value for f in space.facts("billing", "use")] == ["SQLite"]
    assert space.why_not(wrong, "which database for billing?").replaced_by == right.id
    assert space.history(wrong)[-1].reason == "user corrected me"
    assert space.recall("which database for billing?").suppressed_superseded >= 1


def test_from_the_first_word_to_forgetting_without_a_stop(space: Any) -> None:
    mem = space
    ep = mem.record("We decided to use Postgres for billing, not SQLite.", source_kind="user")
    mem.consolidate()
    hits = mem.recall("which database for billing?", k=5, token_budget=400)
    fact_id, episode_id = hits.items[0].id, ep.id
    assert mem.explain(hits.id).considered[0].id == fact_id
    assert mem.why_not(fact_id, "which database…").reason == "recalled"
    mem.correct(fact_id, value="SQLite", reason="user corrected me")
    mem.retract(episode_id, reason="was a joke")
    receipt = mem.erase(subject="alice")
    assert (receipt.bytes_left, sum(receipt.counts.values())) == (0, 0)
    assert [f.value for f in mem.facts("billing")] == ["SQLite"]


def test_reading_back(space: Any) -> None:
    space.remember("user", "home", "Oslo", authority="user_said", valid_from=at(2024))
    space.remember("user", "home", "Rome", authority="user_said", valid_from=at(2020))
    assert [f.value for f in space.facts("user", "home", valid_at=at(2022))] == ["Rome"]
    found = space.timeline("user")
    assert isinstance(found[0], Interval)
    assert [i.fact.value for i in found] == ["Rome", "Oslo"]
    before = space.tx
    space.remember_many([FactInput("user", "writes", v, cardinality="many") for v in "ab"])
    assert {f.value for f in space.diff(before, space.tx).added} == {"a", "b"}
    assert space.facts("user", "writes", known_at=before) == []
    assert space.facts("user", "home", include=[Status.SUPERSEDED])
    (one, two) = space.record_many([EpisodeInput("x", session="s"), EpisodeInput("y", session="s")])
    assert [e.id for e in space.episodes("s")] == [one.id, two.id]
    assert space.episode(one.id) == one
    assert space.fact(found[0].fact.id).value == "Rome"
    assert space.info().agent == space.agent == "hermes-1"


def test_edits_and_effects(space: Any) -> None:
    fact = space.remember("user", "name", "Ann", authority="user_said")
    other = space.remember("user", "name", "Bob")
    (conflict,) = space.conflicts()
    space.resolve(conflict.id, fact.id, reason="asked")
    assert [c.status for c in space.conflicts(include_resolved=True)] == [Status.RESOLVED]
    space.pin(fact.id)
    assert space.fact(fact.id).pinned
    done = space.retract(fact.id, "no")
    space.revert(done.tx)
    space.retract(fact.id, "no")
    space.restore(fact.id)
    newer = space.remember("user", "name", "Cy", authority="user_said")
    assert other.id != newer.id
    space.expire(newer.id)
    assert space.effect("mail", "sent").fresh
    assert space.finish_effect("mail").outcome == "done"
    assert [e.key for e in space.effects()] == ["mail"]


def test_files(space: Any) -> None:
    files = space.files
    files.create("/memories/todo.md", "- write tests")
    files.str_replace("/memories/todo.md", "write", "run")
    files.insert("/memories/todo.md", 1, "- rest")
    assert files.view("/memories/todo.md", (1, 1)) == "     1\t- run tests"
    files.rename("/memories/todo.md", "/memories/done.md")
    assert [f.path for f in files.files()] == ["/memories/done.md"]
    files.delete("/memories/done.md")
    with pytest.raises(NotFound):
        files.view("/memories/done.md")
    with pytest.raises(InvalidRequest):
        files.create("/etc/passwd", "x")


def test_branches_and_forgetting(space: Any) -> None:
    space.record("Alice's number is 555-0100-4242.", subjects=["alice"])
    space.watermark("elsewhere")
    child = space.fork("hermes-2")
    child.remember("user", "likes", "jazz")
    plan = space.plan_merge(child.branch)
    assert space.merge(plan).changed == (plan.facts[0].id,)
    receipt = space.erase(subject="alice")
    assert isinstance(receipt, Receipt)
    assert receipt.bytes_left == 0
    assert child.episodes() == [e for e in child.episodes() if "555" not in e.content]
    with pytest.raises(NotFound):
        space.verify_erasure(receipt.id)


def test_a_writer_of_an_earlier_epoch_is_refused() -> None:
    memory = DaemonMemory()
    space = memory.space("hermes-1")
    space.record("x")
    space.watermark("elsewhere")
    old = memory.space("hermes-1", epoch=space.epoch)
    old.record("y")
    done = space.on_restore("elsewhere", Policy.KEEP)
    with pytest.raises(WrongState, match="epoch 2"):
        old.record("z")
    memory.space("hermes-1", epoch=done.epoch).record("z")
    with pytest.raises(WrongState):
        space.switch(space.branch)


def test_the_memory_of_a_sandbox_follows_its_machine() -> None:
    sandbox = Sandbox.create(metadata={"agent": "hermes-1"})
    before = sandbox.memory
    before.record("x")
    host = DaemonMemory().space("hermes-1")
    host.watermark("elsewhere")
    host.on_restore("elsewhere")
    with pytest.raises(WrongState):
        before.record("y")
    sandbox.memory.record("y")
    assert Sandbox.create().memory.agent.startswith("sbx_")
    assert repr(before) == f"<MemorySpace {sandbox.id}>"


def test_the_whole_memory(tmp_path: Path, server: ServerThread) -> None:
    memory = DaemonMemory()
    memory.space("b").record("one")
    memory.space("a").record("two")
    assert memory.agents() == ("a", "b")
    head = memory.verify_chain().head
    assert memory.verify_chain(expect=head).ok
    assert memory.embed_missing() == 0
    path = tmp_path / "out.jsonl"
    assert memory.export(path) == path.stat().st_size
    with pytest.raises(FileExistsError):
        memory.export(path)
    with pytest.raises(Conflict):
        memory.import_(path)
    server.run(server.engine.aclose())
    server.engine.reset()
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataDamaged):
        memory.import_(damaged)
    assert memory.import_(path).head == head
    assert memory.agents() == ("a", "b")


def test_asynchronous() -> None:
    async def work() -> None:
        sandbox = await AsyncSandbox.create(metadata={"agent": "hermes-1"})
        await sandbox.memory.record(TEXT)
        await sandbox.memory.consolidate()
        space = AsyncDaemonMemory().space("hermes-1")
        assert [f.value for f in await space.facts()] == ["Postgres"]
        await space.files.create("/memories/a", "x")
        assert "1\tx" in await space.files.view("/memories/a")
        (found,) = await AsyncDaemonMemory().spaces()
        assert found == await space.info()

    asyncio.run(work())


def _names(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def _parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found]


@pytest.mark.parametrize(
    ("embedded", "remote", "sync", "apart"),
    [
        (Space, AsyncMemorySpace, MemorySpace, {"erase", "verify_erasure", "consolidate"}),
        (EmbeddedFiles, AsyncMemoryFiles, MemoryFiles, set()),
    ],
)
def test_the_faces_have_the_same_methods(
    embedded: type, remote: type, sync: type, apart: set[str]
) -> None:
    properties = {"agent", "branch", "epoch", "tx"} if embedded is Space else set()
    local = {"verify_chain", "plan_of", "atomically"} if embedded is Space else set()
    more = {"ask"} if embedded is Space else set()
    assert _names(remote) - more == _names(embedded) - properties - local
    assert _names(sync) - more == _names(embedded) - local
    for name in _names(remote) - more:
        found, wanted = getattr(remote, name), getattr(embedded, name)
        if isinstance(found, property):
            continue
        names = [p for p in _parameters(wanted) if p[0] != "exports"]
        if name not in apart:
            assert _parameters(found) == names, name
        else:
            assert [p[0] for p in _parameters(found)] == [p[0] for p in names], name
        assert _parameters(getattr(sync, name)) == _parameters(found), name
        assert getattr(sync, name).__doc__, name


def test_an_embedded_space_can_be_awaited_too(tmp_path: Path) -> None:
    async def work() -> None:
        with Memory.open(tmp_path / "a.db") as memory:
            space = AsyncSpace(memory.space("a"))
            await space.record("x")
            assert (await space.info()).tx == 2

    asyncio.run(work())
    assert AsyncDaemon is AsyncDaemonMemory


def test_memory_goes_back_with_the_machine_and_forks_with_it() -> None:
    sandbox = Sandbox.create(metadata={"agent": "hermes-1"})

    def install(name: str) -> None:
        sandbox.memory.remember("machine", "package", name, scope="machine", cardinality="many")

    install("curl")
    point = sandbox.snapshot()
    assert point.info.watermark is not None
    assert point.info.watermark.agent == "hermes-1"
    old = sandbox.memory
    install("ripgrep")
    assert len(old.facts("machine")) == 2
    sandbox.rollback(point.id, agent_memory="keep")
    assert [f.flag for f in sandbox.memory.facts("machine")] == ["", "unverified"]
    sandbox.rollback(point.id)
    assert sandbox.info.memory_note is None
    assert [f.value for f in sandbox.memory.facts("machine")] == ["curl"]
    with pytest.raises(WrongState):
        old.record("from before")
    fork = Sandbox.fork(point.id)
    assert isinstance(fork, Sandbox)
    assert fork.memory.agent == fork.id
    assert [f.value for f in fork.memory.facts("machine")] == ["curl"]
    kept = Sandbox.restore(point.id, agent_memory="keep", metadata={"agent": "hermes-2"})
    assert kept.memory.agent == "hermes-2"
    with pytest.raises(InvalidRequest):
        sandbox.rollback(point.id, agent_memory="forget")  # type: ignore[arg-type]
    with pytest.raises(Conflict):
        Sandbox.create(from_snapshot=point.id, metadata={"agent": fork.id})
