"""Layers and the family tree: REST, SDK, command line."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.contract.api.conftest import Rest
from tests.contract.api.test_cli import Cli
from torpor import AsyncSnapshot, Sandbox, Snapshot
from torpor.errors import NotFound
from torpor.sdk.family import nodes_of, report_of
from torpor.server.wire_family import LayersWire, TreeWire

pytestmark = pytest.mark.usefixtures("server")
MIB = 1 << 20


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox.create(metadata={"job": "x"})


def test_layers_over_rest_and_sdk(rest: Rest, sandbox: Sandbox) -> None:
    first, second = sandbox.snapshot(), sandbox.snapshot()
    fork = first.fork()
    body = rest.ok("GET", "/v1/layers")
    LayersWire.model_validate(body)
    report = Snapshot.layers()
    assert report == report_of(body)
    assert (report.total_bytes, report.shared_bytes, report.exclusive_bytes) == (
        4 * MIB,
        2 * MIB,
        2 * MIB,
    )
    assert [(s.id, s.needs_bytes, s.frees_bytes) for s in report.snapshots] == [
        (second.id, 2 * MIB, 0),
        (first.id, MIB, 0),
    ]
    assert {s.id: s.frees_bytes for s in report.sandboxes} == {fork.id: MIB, sandbox.id: MIB}
    assert report.freed_by([second.id]) == 0
    assert report.freed_by([second.id, sandbox.id]) == 2 * MIB
    assert report.freed_by([first.id, second.id, sandbox.id, fork.id]) == 4 * MIB
    assert report.freed_by(["snap_unknown"]) == 0
    asleep = sandbox.hibernate()
    found = {s.id: s.asleep for s in Snapshot.layers().snapshots}
    assert found[asleep.id] == (sandbox.id,)
    assert asyncio.run(AsyncSnapshot.layers()) == Snapshot.layers()


def test_tree_over_rest_and_sdk(rest: Rest, sandbox: Sandbox) -> None:
    first = sandbox.snapshot(label="l")
    fork = first.fork()
    other = Sandbox.create("agent")
    body = rest.ok("GET", "/v1/tree")
    TreeWire.model_validate(body)
    nodes = {node.id: node for node in Snapshot.tree()}
    assert list(nodes.values()) == nodes_of(body)
    assert nodes[sandbox.id].parent == nodes[fork.id].parent == first.id
    assert nodes[first.id].parent == nodes[other.id].parent  # the fake's templates have one digest
    assert nodes[str(nodes[first.id].parent)].kind == "template"
    assert (nodes[first.id].label, nodes[first.id].sandbox_id) == ("l", sandbox.id)
    assert (nodes[sandbox.id].state, nodes[sandbox.id].metadata) == ("running", {"job": "x"})
    kept = {node.id for node in Snapshot.tree(sandbox_id=fork.id)}
    assert {first.id, sandbox.id, fork.id} <= kept
    assert other.id not in kept
    with pytest.raises(NotFound):
        Snapshot.tree(sandbox_id="sbx_00000000000000000000")
    rest.fails("GET", "/v1/tree?sandbox_id=sbx_00000000000000000000", 404, "object.not_found")
    assert asyncio.run(AsyncSnapshot.tree(sandbox_id=fork.id)) == Snapshot.tree(sandbox_id=fork.id)


def test_tree_on_the_command_line(cli: Cli, sandbox: Sandbox) -> None:
    first, second = sandbox.snapshot(label="[bold]one\x1b[31m"), sandbox.snapshot()
    fork = first.fork(metadata={"strategy": "a"})
    back = sandbox.rollback(first.id).snapshot(label="back")
    lines = cli("tree", sandbox.id[4:14]).splitlines()
    at = {
        word: n for n, line in enumerate(lines) for word in re.findall(r"s(?:bx|nap)_\w+", line)[:1]
    }
    depth = {word: len(re.match(r"[^\w]*", lines[n]).group()) for word, n in at.items()}  # type: ignore[union-attr]
    assert r"[bold]one\x1b[31m" in lines[at[first.id]]
    assert re.search(rf"snapshot of {sandbox.id}, 1\.0 MiB, \d+ s$", lines[at[first.id]])
    assert re.search(rf"{fork.id}  running  strategy=a, 1\.0 MiB, \d+ s$", lines[at[fork.id]])
    assert re.search(rf"{sandbox.id}  running  job=x", lines[at[sandbox.id]])
    # two snapshots followed the first one in the same sandbox: a branch begins there
    assert depth[second.id] == depth[back.id] == depth[fork.id] > depth[first.id]
    assert depth[sandbox.id] > depth[back.id]
    found = cli.json("tree", sandbox.id)
    assert {n["id"]: n["parent"] for n in found}[back.id] == first.id
    assert len(cli.json("tree")) >= len(found)
    cli.fails("tree", "zzzz", code=66)


def test_snapshots_in_a_row_stand_below_each_other(cli: Cli, sandbox: Sandbox) -> None:
    taken = [sandbox.snapshot().id for _ in range(5)]
    lines = [line for line in cli("tree").splitlines() if "snap_" in line]
    assert [re.search(r"snap_\w+", line).group() for line in lines] == taken  # type: ignore[union-attr]
    assert len({line.index("snap_") for line in lines}) == 1


def test_layers_on_the_command_line(cli: Cli, sandbox: Sandbox) -> None:
    first = sandbox.snapshot(label="one")
    text = cli("layers")
    assert re.search(r"^ID +LABEL +NEEDS +FREES +ASLEEP AT IT", text)
    assert re.search(rf"^{first.id} +one +1\.0 MiB +0 B +- *$", text, re.MULTILINE)
    assert re.search(rf"^{sandbox.id} +- +2\.0 MiB +1\.0 MiB +- *$", text, re.MULTILINE)
    assert text.endswith("2.0 MiB in 2 layers: 1.0 MiB shared, 1.0 MiB exclusive, 0 B not needed\n")
    assert re.search(r"^lyr_\w+ +1\.0 MiB +yes", cli("layers", "--all"), re.MULTILINE)
    assert cli.json("layers")["total_bytes"] == 2 * MIB
    assert cli("layers", "--dry-run") == cli("layers")
    assert (
        cli("layers", "--dry-run", f"{sandbox.id}@one") == f"deleting {first.id} would free 0 B\n"
    )
    both = ("--dry-run", first.id[:12], sandbox.id)
    assert cli("layers", *both).endswith("would free 2.0 MiB\n")
    assert cli.json("layers", *both)["frees_bytes"] == 2 * MIB
    asleep = sandbox.hibernate()
    cli("layers", "--dry-run", asleep.id)
    assert "refused" in cli.stderr
    found = json.loads(cli("layers", "--json", "--dry-run", asleep.id))
    assert found["refused_for"] == [sandbox.id]
    assert cli.json("layers", asleep.id, sandbox.id)["refused_for"] == []
    cli.fails("layers", "--dry-run", "zzzz", code=66)
    assert [s["id"] for s in cli.json("snapshots")] == [asleep.id, first.id]  # nothing was deleted
