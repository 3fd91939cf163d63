"""Random lives of agents: snapshots, restores of each policy, forks, merges, erasures, against a model of copies.

The model knows nothing of transactions: a branch is a dictionary, a fork copies it, a snapshot keeps a copy.
"""

from __future__ import annotations

import copy
import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.memory.profile import many
from torpor.errors import TorporError, WrongState
from torpor.memory import Memory, Space

pytestmark = pytest.mark.timeout(7200)

AGENT = st.integers(0, 3)
PICK = st.integers(0, 20)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("remember"), AGENT, st.sampled_from(["world", "machine", "task"])),
        st.tuples(st.just("remember"), AGENT, st.sampled_from(["world", "machine", "task"])),
        st.tuples(st.just("record"), AGENT),
        st.tuples(st.just("retract"), AGENT, PICK),
        st.tuples(st.just("restore"), AGENT, PICK),
        st.tuples(st.just("snapshot"), AGENT),
        st.tuples(
            st.just("on_restore"), AGENT, PICK, st.sampled_from(["reconcile", "rewind", "keep"])
        ),
        st.tuples(st.just("switch"), AGENT, PICK),
        st.tuples(st.just("fork"), AGENT, st.none() | PICK),
        st.tuples(st.just("merge"), AGENT, AGENT),
        st.tuples(st.just("erase"), AGENT, PICK),
        st.tuples(st.just("effect"), AGENT, PICK),
    ),
    max_size=18,
)

_run = itertools.count()


@dataclass
class Known:
    """A fact or an episode on one branch."""

    kind: str
    scope: str
    words: str
    status: str = "active"


@dataclass
class Agent:
    """One agent in the model: its branches by id, and which one it is on."""

    space: Space
    at: str
    branches: dict[str, dict[str, Known]]
    effects: set[str] = field(default_factory=set)
    epochs: int = 1

    @property
    def here(self) -> dict[str, Known]:
        return self.branches[self.at]


class Model:
    """All agents and snapshots; carries each operation out on both sides."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.run = next(_run)
        self.words = itertools.count()
        space = memory.space(f"agent-{self.run}-0")
        self.agents = [Agent(space, space.branch, {space.branch: {}})]
        self.snapshots: list[tuple[str, int, str, dict[str, Known]]] = []
        self.erased: list[str] = []

    def agent(self, n: int) -> Agent:
        return self.agents[n % len(self.agents)]

    def word(self) -> str:
        return f"zw{self.run}q{next(self.words)}"

    def remember(self, n: int, scope: str) -> None:
        agent, word = self.agent(n), self.word()
        fact = agent.space.remember("thing", "tag", word, scope=scope, cardinality="many")
        agent.here[fact.id] = Known("fact", scope, word)

    def record(self, n: int) -> None:
        agent, word = self.agent(n), self.word()
        made = agent.space.record(f"the word {word} was said")
        agent.here[made.id] = Known("episode", "", word)

    def retract(self, n: int, pick: int) -> None:
        agent = self.agent(n)
        if (target := self._pick(agent, pick)) and agent.here[target].status == "active":
            agent.space.retract(target, "no")
            agent.here[target].status = "retracted"

    def restore(self, n: int, pick: int) -> None:
        agent = self.agent(n)
        if (target := self._pick(agent, pick)) and agent.here[target].status != "active":
            agent.space.restore(target)
            agent.here[target].status = "active"

    def _pick(self, agent: Agent, pick: int) -> str | None:
        ids = list(agent.here)
        return ids[pick % len(ids)] if ids else None

    def snapshot(self, n: int) -> None:
        agent = self.agent(n)
        name = f"snap-{self.run}-{len(self.snapshots)}"
        agent.space.watermark(name)
        self.snapshots.append((name, n % len(self.agents), agent.at, copy.deepcopy(agent.here)))

    def on_restore(self, n: int, pick: int, policy: str) -> None:
        mine = [s for s in self.snapshots if self.agent(s[1]) is self.agent(n)]
        if not mine:
            return
        agent = self.agent(n)
        name, _, _, kept = mine[pick % len(mine)]
        done = agent.space.on_restore(name, policy)
        agent.epochs += 1
        assert done.epoch == agent.space.epoch == agent.epochs
        if policy == "rewind":
            agent.branches[done.branch] = copy.deepcopy(kept)
            agent.at = done.branch
        elif policy == "reconcile":
            self._reconcile(agent, kept)

    def _reconcile(self, agent: Agent, kept: dict[str, Known]) -> None:
        for name, known in agent.here.items():
            if known.scope in ("machine", "task"):
                if name in kept:
                    known.status = kept[name].status
                elif known.status == "active":
                    known.status = "suspended"
        for name, known in kept.items():
            if known.scope in ("machine", "task") and name not in agent.here:
                agent.here[name] = copy.deepcopy(known)

    def switch(self, n: int, pick: int) -> None:
        agent = self.agent(n)
        names = list(agent.branches)
        target = names[pick % len(names)]
        if target != agent.at:
            agent.space.switch(target)
            agent.at = target
            agent.epochs += 1

    def fork(self, n: int, pick: int | None) -> None:
        agent = self.agent(n)
        if len(self.agents) >= 4:
            return
        mine = [s for s in self.snapshots if self.agent(s[1]) is agent]
        source, snapshot = agent.here, None
        if pick is not None and mine:
            snapshot, _, _, source = mine[pick % len(mine)]
        child = agent.space.fork(f"agent-{self.run}-{len(self.agents)}", snapshot_id=snapshot)
        made = Agent(child, child.branch, {child.branch: copy.deepcopy(source)})
        made.effects = {e.key for e in child.effects()}
        assert made.effects <= agent.effects
        self.agents.append(made)

    def merge(self, n: int, other: int) -> None:
        agent, source = self.agent(n), self.agent(other)
        if agent is source:
            return
        agent.space.merge(agent.space.plan_merge(source.at))
        for name, known in source.here.items():
            if known.kind == "fact" and known.scope == "world" and known.status == "active":
                agent.here.setdefault(name, copy.deepcopy(known))

    def erase(self, n: int, pick: int) -> None:
        agent = self.agent(n)
        target = self._pick(agent, pick)
        if target is None:
            return
        known = agent.here[target]
        kind = {known.kind: target}
        receipt = agent.space.erase(**kind)  # type: ignore[arg-type]
        assert receipt.bytes_left == 0
        self.erased.append(known.words)
        places = [b for a in self.agents for b in a.branches.values()]
        for place in [*places, *(s[3] for s in self.snapshots)]:
            place.pop(target, None)

    def effect(self, n: int, pick: int) -> None:
        agent = self.agent(n)
        key = f"effect-{pick}"
        made = agent.space.effect(key, "did it")
        assert made.fresh == (key not in agent.effects)
        agent.effects.add(key)

    def check(self) -> None:
        """Compare every agent's view with the model."""
        for agent in self.agents:
            space = agent.space
            assert space.branch == agent.at
            facts = {f.id: f.value for f in space.facts()}
            assert facts == {
                n: k.words
                for n, k in agent.here.items()
                if k.kind == "fact" and k.status == "active"
            }
            said = {e.id: e.status for e in space.episodes() if e.content.startswith("the word ")}
            assert said == {n: k.status for n, k in agent.here.items() if k.kind == "episode"}
            assert {e.key for e in space.effects()} == agent.effects
            self._check_recall(agent)

    def _check_recall(self, agent: Agent) -> None:
        for word in self.erased[-2:]:
            assert len(agent.space.recall(word)) == 0
        for name, known in list(agent.here.items())[-3:]:
            given = {i.id for i in agent.space.recall(known.words)}
            assert (name in given) == (known.status == "active")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sequences")


@many(0.5)
@given(OPERATIONS)
def test_every_view_is_what_the_copies_say(folder: Path, operations: list[tuple[Any, ...]]) -> None:
    path = folder / f"{next(_run)}.db"
    with Memory.open(path) as memory:
        model = Model(memory)
        for name, *rest in operations:
            getattr(model, name)(*rest)
        model.check()
        head = memory.verify_chain().head
        memory.export(path.with_suffix(".jsonl"))
        parts = (path, Path(f"{path}-wal"), path.with_suffix(".jsonl"))
        data = b"".join(p.read_bytes() for p in parts if p.exists())
        assert not any(re.search(rb"\b" + word.encode() + rb"\b", data) for word in model.erased)
        views = [(a.space.agent, a.space.facts(), a.space.episodes()) for a in model.agents]
    with Memory.open(path.with_suffix(".copy")) as copy:
        copy.import_(path.with_suffix(".jsonl"))
        assert copy.verify_chain(expect=head).ok
        for agent, facts, episodes in views:
            space = copy.space(agent)
            assert (space.facts(), space.episodes()) == (facts, episodes)
    for made in path.parent.glob(f"{path.stem}.*"):
        made.unlink()


@many(0.2)
@given(OPERATIONS, st.integers(1, 5))
def test_writers_of_an_old_epoch_are_always_refused(
    folder: Path, operations: list[tuple[Any, ...]], late: int
) -> None:
    path = folder / f"{next(_run)}.db"
    with Memory.open(path) as memory:
        model = Model(memory)
        guest = memory.space(model.agents[0].space.agent, epoch=1)
        for name, *rest in operations:
            getattr(model, name)(*rest)
        before = model.agents[0].space.tx
        if model.agents[0].epochs == 1:
            guest.record("still of this epoch")
        else:
            with pytest.raises(WrongState):
                guest.record("from before the restore")
            assert model.agents[0].space.tx == before
    path.unlink()


@many(0.2)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.data())
def test_support_decides_which_derived_facts_stand(
    folder: Path, parents: list[int], data: st.DataObject
) -> None:
    """A random graph of derived facts: one stands exactly if one of its parents does."""
    path = folder / f"{next(_run)}.db"
    with Memory.open(path) as memory:
        space = memory.space("a")
        roots = [space.remember(f"root {n}", "is", n).id for n in range(3)]
        nodes: list[tuple[str, list[str]]] = [(r, []) for r in roots]
        for n, seed in enumerate(parents):
            chosen = {nodes[seed % len(nodes)][0], nodes[(seed * 7 + 3) % len(nodes)][0]}
            made = space.remember(f"node {n}", "is", n, derived_from=sorted(chosen))
            nodes.append((made.id, sorted(chosen)))
        gone: set[str] = set()
        for root in data.draw(st.lists(st.sampled_from(roots), max_size=6)):
            try:
                space.restore(root) if root in gone else space.retract(root, "no")
            except TorporError:
                raise AssertionError("a legal step was refused") from None
            gone ^= {root}
            stands = {r for r in roots if r not in gone}
            for node, above in nodes[3:]:
                if stands & set(above):
                    stands.add(node)
            assert {f.id for f in space.facts()} == stands
    path.unlink()
