"""Create on a host where hundreds of sandboxes sleep, beside the same on an empty one.

Both run in homes of their own below the home's `tmp`, each with its own daemon, so nothing of the user's is
touched. One sandbox is really put to sleep; the others are copies of its row and of its snapshot, sharing its
layers: what the daemon has to look through is the same, and making them takes seconds instead of an hour.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.base.fsio import write_atomic
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.base.proc import ProcessId
from torpor.bench.channel import took
from torpor.bench.figures import Figure, Goal, Series
from torpor.bench.rig import Rig
from torpor.db.database import Database
from torpor.db.sandboxes import SandboxRows
from torpor.errors import NotFound
from torpor.layers.manifest import Manifest, read_manifest
from torpor.layers.store import LayerStore
from torpor.model import SandboxId, SnapshotId, TemplateInfo
from torpor.sdk.client import Client
from torpor.sdk.daemon import ensure_daemon
from torpor.sdk.loop import loop_thread
from torpor.sdk.sync_sandbox import Sandbox

_SNAPSHOTS_EACH = 4
_END_POLLS = 600
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class _Place:
    """A home of our own with a daemon."""

    home: Home
    client: Client


def create_in_a_crowd(rig: Rig) -> Iterator[Figure]:
    """Creates in an empty home and in one with hundreds of sleepers, in turns."""
    sleepers = rig.times(500, 20)
    empty_ms: list[float] = []
    full_ms: list[float] = []
    with _place(rig, "empty") as empty, _place(rig, "full") as full:
        _fill(rig, full, sleepers)
        for round_ in range(1 + rig.times(20, 2)):
            for place, found in ((empty, empty_ms), (full, full_ms)):
                value = _create(rig, place)
                if round_:
                    found.append(value)
    yield Figure(
        name="crowd.create",
        what=f"create with {sleepers} hibernated sandboxes and {sleepers * _SNAPSHOTS_EACH} snapshots present",
        unit="ms",
        ours=Series.of(full_ms),
        beside=Series.of(empty_ms),
        beside_what="create in an empty home",
        goal=Goal("ratio at most", 1.2),
        note="one sandbox was put to sleep, the others are copies of its row and snapshot",
    )


def _create(rig: Rig, place: _Place) -> float:
    made: list[Sandbox] = []
    try:
        return took(lambda: made.append(Sandbox.create(rig.template.name, client=place.client)))
    finally:
        for sandbox in made:
            sandbox.delete()


def _fill(rig: Rig, place: _Place, sleepers: int) -> None:
    """Put one sandbox to sleep and copy it until there are so many."""
    rig.say(f"putting {sleepers} sandboxes to sleep")
    with contextlib.closing(
        _Sleeper(Sandbox.create(rig.template.name, client=place.client))
    ) as one:
        one.sandbox.hibernate()
        _end_daemon(place.home)
        try:
            _copy(place.home, SandboxId(one.sandbox.id), sleepers)
        finally:
            ensure_daemon(place.home)
        one.stays = True


def _point(store: LayerStore, manifest: Manifest, owner: SandboxId) -> SnapshotId:
    """Add a copy of a snapshot that belongs to `owner`; return its id."""
    info = replace(manifest.info, id=SnapshotId(new_id("snap")), sandbox_id=owner, size_bytes=0)
    return store.duplicate(manifest, info).info.id


class _Sleeper:
    """A sandbox that is deleted unless it `stays`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.stays = False

    def close(self) -> None:
        """Delete it unless it stays."""
        if not self.stays:
            self.sandbox.delete()


def _copy(home: Home, sandbox_id: SandboxId, sleepers: int) -> None:
    """Add copies of a sleeping sandbox and of its snapshot, while no daemon serves `home`."""
    store = LayerStore(home)
    store.load()
    rows = SandboxRows(Database.open(home.database))
    try:
        row = rows.get(sandbox_id)
        if row is None or row.info.parent_snapshot is None:
            raise NotFound(f"sandbox {sandbox_id} does not sleep")
        manifest = store.get(row.info.parent_snapshot)
        for number in range(sleepers):
            owner = SandboxId(new_id("sbx")) if number else sandbox_id
            for _ in range(_SNAPSHOTS_EACH - 1):
                _point(store, manifest, owner)
            if number:
                last = _point(store, manifest, owner)
                copy = row.with_info(id=owner, parent_snapshot=last)
                rows.insert(replace(copy, layers=replace(copy.layers, image=last)))
    finally:
        rows.close()


# ---- homes of our own ----


@contextlib.contextmanager
def _place(rig: Rig, name: str) -> Iterator[_Place]:
    """Enter with a home that has the template and its snapshot, and a daemon; all of it is gone afterwards."""
    home = Home(rig.folder / name)
    try:
        home.prepare()
        write_atomic(home.driver, f"{rig.driver.name}\n".encode())
        _bring_template(rig.home, home, rig.template)
        yield _Place(home, Client(home=home.root))
    finally:
        _end_daemon(home)
        for folder in home.sandboxes.glob("sbx_*"):
            loop_thread.run(rig.driver.sweep(folder))
        shutil.rmtree(home.root, ignore_errors=True)


def _bring_template(source: Home, target: Home, template: TemplateInfo) -> None:
    """Share a template, its snapshot and the made image by hard links: they are never written."""
    _link_tree(source.templates / template.digest, target.templates / template.digest)
    shutil.copyfile(
        source.templates / f"{template.name}.json", target.templates / f"{template.name}.json"
    )
    for folder in source.snapshots.iterdir():
        with contextlib.suppress(NotFound):
            manifest = read_manifest(folder)
            if (manifest.info.reason, manifest.info.template_digest) != (
                "template",
                template.digest,
            ):
                continue
            _link_tree(folder, target.snapshots / folder.name)
            for layer in manifest.layer_ids:
                for path in source.layers.glob(f"{layer}.*"):
                    (target.layers / path.name).hardlink_to(path)
            image = source.images / f"{folder.name}.img"
            if image.exists():
                (target.images / image.name).hardlink_to(image)
    shutil.copyfile(source.images / "boot_id", target.images / "boot_id")


def _link_tree(source: Path, target: Path) -> None:
    target.mkdir(mode=0o711)
    target.chmod(0o711)
    for path in source.iterdir():
        (target / path.name).hardlink_to(path)


def _end_daemon(home: Home) -> None:
    """Ask the daemon of `home` to end, wait until it has, and reap it; machines run on."""
    pause = threading.Event()
    for process in _processes(home, b"torpor.server"):
        os.kill(process.pid, signal.SIGTERM)
        for _ in range(_END_POLLS):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
            if not process.alive():
                break
            pause.wait(_POLL_S)


def _processes(home: Home, word: bytes) -> list[ProcessId]:
    """Return the processes below `home` whose command line has `word`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if not (entry / "cwd").readlink().is_relative_to(home.root):
                continue
            if word not in (entry / "cmdline").read_bytes():
                continue
        except OSError:
            continue
        process = ProcessId.of(int(entry.name))
        if process is not None:
            found.append(process)
    return found
