"""Sums of layers, and the family as a tree."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.fakes.engine import fake_template
from torpor.layers.store import LayerUse
from torpor.model import (
    SandboxId,
    SandboxInfo,
    SandboxState,
    SnapshotId,
    SnapshotInfo,
    SnapshotReason,
)
from torpor.server.family import family_tree, layers_report

TEMPLATE = fake_template("base")
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def snapshot(
    name: str,
    sandbox: str | None,
    parent: str | None,
    *,
    minute: int = 0,
    reason: SnapshotReason = "snapshot",
) -> SnapshotInfo:
    return SnapshotInfo(
        id=SnapshotId(name),
        label=None,
        sandbox_id=SandboxId(sandbox) if sandbox else None,
        parent=SnapshotId(parent) if parent else None,
        reason=reason,
        template="base",
        template_digest=TEMPLATE.digest,
        created_at=BEGAN + timedelta(minutes=minute),
        consistency="filesystem",
        vcpus=1,
        ram_mib=512,
        disk_gib=4,
        network="user",
        driver="qemu",
        driver_version="10",
        cpu="max",
        accel="tcg",
        size_bytes=5,
        pause_ms=1.0,
    )


def sandbox(
    name: str, at: str | None, *, state: SandboxState = SandboxState.RUNNING
) -> SandboxInfo:
    return SandboxInfo(
        id=SandboxId(name),
        state=state,
        template="base",
        template_digest=TEMPLATE.digest,
        vcpus=1,
        ram_mib=512,
        disk_gib=4,
        network="user",
        env_names=(),
        metadata={},
        ttl_seconds=None,
        on_timeout="delete",
        created_at=BEGAN,
        expires_at=None,
        parent_snapshot=SnapshotId(at) if at else None,
    )


def use(name: str, size: int, snapshots: str = "", sandboxes: str = "") -> LayerUse:
    return LayerUse(
        name, size, tuple(SnapshotId(s) for s in snapshots.split()), tuple(sandboxes.split())
    )


FAMILY = (
    [
        snapshot("t", None, None, reason="template"),
        snapshot("a2", "a", "a1", minute=2),
        snapshot("a1", "a", "t", minute=1),
        snapshot("b1", "b", "a1", minute=3),
        snapshot("c1", "c", "t", minute=4),
        snapshot("o1", "gone", "deleted", minute=5),
    ],
    [sandbox("a", "a2"), sandbox("b", "b1"), sandbox("c", "c1"), sandbox("new", None)],
)


def tree(of: str | None = None) -> dict[str, str | None]:
    nodes = family_tree([TEMPLATE], *FAMILY, [], of=of)
    return {node.id: node.parent for node in nodes}


def test_everyone_below_what_they_descend_from() -> None:
    assert tree() == {
        "base": None,
        "t": "base",
        "a1": "t",
        "a2": "a1",
        "b1": "a1",
        "c1": "t",
        "o1": "base",
        "a": "a2",
        "b": "b1",
        "c": "c1",
        "new": "base",
    }
    nodes = {node.id: node for node in family_tree([TEMPLATE], *FAMILY, [])}
    assert [n.id for n in nodes.values() if n.parent_deleted] == ["o1"]


def test_the_family_of_one() -> None:
    relatives = {"base", "t", "a1", "a2", "b1", "a", "b"}
    assert set(tree("a")) == set(tree("b")) == relatives
    assert set(tree("c")) == {"base", "t", "c1", "c"}
    assert set(tree("gone")) == {"base", "o1"}
    assert set(tree("new")) == {"base", "new"}
    assert tree("nobody") == {}


def test_a_template_that_was_built_anew() -> None:
    newer = replace(TEMPLATE, digest="cd" * 32)
    nodes = family_tree([newer], *FAMILY, [])
    assert [(n.id, n.label) for n in nodes if n.kind == "template"] == [
        ("base", "base"),
        ("base@abababababab", "base"),
    ]
    assert {n.id: n.parent for n in nodes}["t"] == "base@abababababab"


def test_a_long_life_is_no_deep_recursion() -> None:
    chain = [snapshot("s0", "a", None)]
    chain += [snapshot(f"s{n}", "a", f"s{n - 1}", minute=n) for n in range(1, 3000)]
    nodes = family_tree([TEMPLATE], chain, [sandbox("a", "s2999")], [], of="a")
    assert len(nodes) == 3002


def test_layers() -> None:
    uses = [
        use("l1", 1, "s1 s2", "a"),
        use("l2", 10, "s2"),
        use("l3", 100, "", "a"),
        use("l4", 1000),
        use("l5", 10000, "s3", "b"),
    ]
    snapshots = [snapshot("s1", "a", None), snapshot("s2", "a", "s1"), snapshot("s3", "b", None)]
    kept = [sandbox("a", "s2"), sandbox("b", "s3", state=SandboxState.HIBERNATED)]
    report = layers_report(uses, snapshots, kept)
    assert [layer.shared for layer in report.layers] == [True, False, False, False, True]
    assert (report.total_bytes, report.unneeded_bytes) == (11111, 1000)
    assert (report.shared_bytes, report.exclusive_bytes) == (10001, 110)
    assert [(s.id, s.needs_bytes, s.frees_bytes, s.asleep) for s in report.snapshots] == [
        ("s1", 1, 0, []),
        ("s2", 11, 10, []),
        ("s3", 10000, 0, ["b"]),
    ]
    assert [(s.id, s.needs_bytes, s.frees_bytes) for s in report.sandboxes] == [
        ("a", 101, 100),
        ("b", 10000, 0),
    ]
