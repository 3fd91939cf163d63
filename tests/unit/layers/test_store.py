"""The store of snapshots: what is found, what is collected, and what 2,000 of them cost."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.layers.shelf import Shelf, make_snapshot
from torpor.base.ids import new_id
from torpor.errors import Conflict, DataDamaged, InsufficientResources, NotFound
from torpor.layers import store as module
from torpor.layers.manifest import LayerRef, Manifest, to_json
from torpor.layers.store import LayerStore, Needed
from torpor.layers.verify import damage_of
from torpor.model import SandboxId, SnapshotId


def _age(shelf: Shelf) -> None:
    """Let the folders be as they are after a while."""
    for folder in (shelf.home.layers, shelf.home.images):
        os.utime(folder, ns=(1, 1))


def test_snapshots_are_found_by_sandbox_and_template_newest_first(shelf: Shelf) -> None:
    one, two = SandboxId(new_id("sbx")), SandboxId(new_id("sbx"))
    ram = [shelf.ram({0: 1})]
    first = shelf.snapshot([], ram, sandbox_id=one)
    template = shelf.snapshot([], ram, sandbox_id=None, reason="template", template_digest="1" * 64)
    second = shelf.snapshot([], ram, sandbox_id=two)
    third = shelf.snapshot([], ram, sandbox_id=one)
    for store in (shelf.store, shelf.again()):
        assert store.snapshots() == [third, second, template, first]
        assert store.snapshots(one) == [third, first]
        assert store.snapshots(two) == [second]
        assert store.of_template("1" * 64) == [template]
        assert store.of_template("0" * 64) == []
    for manifest in (first, second, third):
        shelf.store.remove(manifest.info.id)
    assert shelf.store.snapshots() == [template]
    assert shelf.store.snapshots(one) == []
    with pytest.raises(NotFound):
        shelf.store.get(first.info.id)


def test_collection_looks_only_when_something_changed(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    real = LayerStore._collect_layers

    def counted(self: LayerStore, needed: set[str], files: list[Path]) -> int:
        looked.append(needed)
        return real(self, needed, files)

    monkeypatch.setattr(LayerStore, "_collect_layers", counted)
    kept = shelf.snapshot([shelf.disk()], [shelf.ram({0: 1})])
    needed = shelf.disk()
    _age(shelf)
    assert shelf.store.collect(lambda: Needed([needed.id])) == 0
    assert shelf.store.collect(lambda: Needed([needed.id])) == 0
    assert len(looked) == 1
    stray = shelf.home.layers / f"{new_id('lyr')}.sum"
    stray.write_text("a snapshot that failed left this")
    assert shelf.store.collect(lambda: Needed([needed.id])) > 0
    assert not stray.exists()
    _age(shelf)
    assert shelf.store.collect(lambda: Needed([needed.id])) == 0
    count = len(looked)
    assert shelf.store.collect(lambda: Needed([needed.id])) == 0
    assert len(looked) == count
    assert shelf.store.collect(lambda: Needed([])) > 0, "what was needed is not any more"
    shelf.store.remove(kept.info.id)
    assert shelf.store.collect(lambda: Needed([])) > 0
    assert shelf.files() == set()


def test_fresh_folders_are_always_looked_at(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is made in the same tick of the clock changes no time."""
    shelf.store.collect(lambda: Needed([]))
    tick = shelf.home.layers.stat().st_mtime_ns
    (shelf.home.layers / f"{new_id('lyr')}.sum").touch()
    os.utime(shelf.home.layers, ns=(tick, tick))
    shelf.store.collect(lambda: Needed([]))
    assert shelf.files() == set()


def test_a_manifest_without_names_of_an_environment_or_with_unknown_keys_is_read(
    shelf: Shelf,
) -> None:
    wanted = shelf.snapshot([shelf.disk()], [shelf.ram({0: 1})], env_names=("A",))
    old = shelf.snapshot([shelf.disk()], [shelf.ram({0: 1})])
    for info, change in ((wanted.info, {"later": 1}), (old.info, {"env_names": None})):
        path = shelf.store.folder(info.id) / "manifest.json"
        body = json.loads(path.read_text())
        body["snapshot"] = {
            key: value for key, value in (body["snapshot"] | change).items() if value is not None
        }
        for key in ("label", "parent"):
            body["snapshot"].setdefault(key, None)
        del body["checksum"]
        body["checksum"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        path.chmod(0o600)
        path.write_text(json.dumps(body))
    store = LayerStore(shelf.home)
    assert store.load() == []
    assert [m.info for m in store.snapshots()] == [old.info, wanted.info]


def test_disk_layers_of_two_drivers_lie_side_by_side(shelf: Shelf) -> None:
    first, second = shelf.disk(), shelf.disk()
    store = LayerStore(shelf.home, disk_suffix=".raw")
    store.load()
    assert store.disk_path(first.id).suffix == ".qcow2", "what is there keeps its name"
    whole, above = new_id("lyr"), new_id("lyr")
    path = store.disk_path(whole)
    assert path.suffix == ".raw"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(5 << 20)
        file.write(b"some")
    ref = store.ref(whole, path)
    assert ref.size_bytes == 1 << 40
    assert damage_of(ref, path) is None, "a whole disk's holes are not read"
    assert shelf.store.disk_path(whole) == path, "the other driver finds it, too"
    shelf.store.disk_path(above).write_bytes(b"a delta of the other driver")
    assert store.needed_disks([first.id, second.id]) == (first.id, second.id)
    assert store.needed_disks([first.id, whole, above]) == (whole, above)
    assert store.needed_disks([whole]) == (whole,)
    assert store.needed_disks([]) == ()
    kinds = {use.id: use.kind for use in store.uses([])}
    assert kinds == dict.fromkeys((first.id, second.id, whole, above), "disk")
    assert store.collect(lambda: Needed([whole])) > 0
    assert {name for name in shelf.files() if name.endswith((".raw", ".qcow2"))} == {path.name}


def test_layers_of_a_damaged_manifest_are_kept(shelf: Shelf) -> None:
    manifest = shelf.snapshot([shelf.disk()], [shelf.ram({0: 1})], label="good")
    path = shelf.store.folder(manifest.info.id) / "manifest.json"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b'"good"', b'"gooe"'))
    store = LayerStore(shelf.home)
    (problem,) = store.load()
    assert isinstance(problem, DataDamaged)
    before = shelf.files()
    store.collect(lambda: Needed([]))
    assert shelf.files() == before
    assert store.damaged.keys() == {manifest.info.id}
    assert manifest.info.template_digest in store.damaged[manifest.info.id]
    assert shelf.store.damaged == {}


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RecursionError("too deep")])
def test_while_a_manifest_cannot_be_read_no_layer_goes(
    shelf: Shelf, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = shelf.snapshot([shelf.disk()], [shelf.ram({0: 1})])
    bad = shelf.snapshot([shelf.disk()], [shelf.ram({0: 1})])
    read, read_bytes = module.read_manifest, Path.read_bytes

    def broken(folder: Path) -> Manifest:
        if folder.name == bad.info.id:
            raise error
        return read(folder)

    def unreadable(path: Path) -> bytes:
        if path.parent.name == bad.info.id and isinstance(error, OSError):
            raise error
        return read_bytes(path)

    monkeypatch.setattr(module, "read_manifest", broken)
    monkeypatch.setattr(Path, "read_bytes", unreadable)
    store = LayerStore(shelf.home)
    (problem,) = store.load()
    assert isinstance(problem, DataDamaged)
    assert bad.info.id in problem.message
    assert store.snapshots() == [good]
    assert store.damaged.keys() == {bad.info.id}
    before = shelf.files()
    assert store.collect(lambda: Needed([])) == 0
    assert shelf.files() == before
    monkeypatch.undo()
    again = shelf.again()
    again.remove(bad.info.id)
    assert again.collect(lambda: Needed([])) > 0


def test_a_second_snapshot_of_an_id_does_not_touch_the_first(shelf: Shelf) -> None:
    manifest = shelf.snapshot([shelf.disk()], [shelf.ram({0: 1})])
    with pytest.raises(Conflict, match=manifest.info.id):
        shelf.snapshot([], [shelf.ram({0: 1})], id=manifest.info.id)
    assert shelf.store.verify(manifest.info.id) == []
    assert shelf.again().snapshots() == [manifest]


def test_a_snapshot_whose_id_is_taken_at_the_last_moment_leaves_that_one(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(_: Path, target: Path) -> None:
        target.mkdir()
        (target / "manifest.json").write_text("of another")
        raise FileExistsError(target)

    monkeypatch.setattr(module, "publish_dir", taken)
    with pytest.raises(FileExistsError):
        shelf.snapshot([], [shelf.ram({0: 1})])
    (folder,) = shelf.home.snapshots.iterdir()
    assert (folder / "manifest.json").read_text() == "of another"
    assert [p.name for p in shelf.home.tmp.iterdir() if p.is_dir()] == []


@pytest.mark.parametrize("step", ["write_json", "publish_dir", "fsync_dir", "seal"])
def test_a_full_disk_leaves_nothing_of_a_snapshot(
    shelf: Shelf, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    ram = [shelf.ram({0: 1})]
    monkeypatch.setattr(module, step, full)
    with pytest.raises(InsufficientResources, match="disk is full"):
        shelf.snapshot([], ram)
    monkeypatch.undo()
    assert shelf.store.snapshots() == []
    assert list(shelf.home.snapshots.iterdir()) == []
    assert [p.name for p in shelf.home.tmp.iterdir() if p.is_dir()] == []
    shelf.snapshot([], ram)


def test_a_snapshot_whose_name_is_not_durable_is_none(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(source: Path, target: Path) -> None:
        source.rename(target)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "publish_dir", torn)
    with pytest.raises(OSError, match="Input/output"):
        shelf.snapshot([], [shelf.ram({0: 1})])
    assert list(shelf.home.snapshots.iterdir()) == []


def _many(shelf: Shelf, count: int) -> None:
    """Write `count` manifests, of 20 sandboxes, as daemons before us did."""
    sandboxes = [SandboxId(new_id("sbx")) for _ in range(20)]
    refs = [LayerRef(new_id("lyr"), 1 << 20, "0" * 64) for _ in range(count + 40)]
    for number in range(count):
        info = make_snapshot(
            sandbox_id=sandboxes[number % 20], id=SnapshotId(new_id("snap")), label=f"n{number}"
        )
        chain = tuple(refs[number : number + 12])
        folder = shelf.home.snapshots / info.id
        folder.mkdir()
        manifest = Manifest(info, chain, chain, refs[0], epoch=1)
        text = json.dumps(to_json(manifest), indent=1, sort_keys=True)
        (folder / "manifest.json").write_text(text)
        (shelf.home.layers / f"{chain[0].id}.ram").touch()
        (shelf.home.layers / f"{chain[0].id}.sum").touch()


def test_two_thousand_snapshots_are_indexed(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    _many(shelf, 2000)
    store = LayerStore(shelf.home)
    assert store.load() == []
    monkeypatch.setattr(Path, "iterdir", _never)  # what every create asks looks at no folder
    one = store.snapshots()[0].info
    assert store.get(one.id).info == one
    assert one.sandbox_id is not None
    assert len(store.snapshots(one.sandbox_id)) == 100
    assert store.of_template(one.template_digest) == []
    monkeypatch.undo()
    assert store.collect(lambda: Needed([])) == 0
    for folder in (shelf.home.layers, shelf.home.images):
        os.utime(folder, ns=(1, 1))
    store.collect(lambda: Needed([]))
    monkeypatch.setattr(Path, "iterdir", _never)
    assert store.collect(lambda: Needed([])) == 0, "nothing changed, so nothing is looked at"


def _never(_: Path) -> Iterator[Path]:
    raise AssertionError("a folder was looked at")
