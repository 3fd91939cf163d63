"""Where memory cannot go on: with another driver, another version of it or another CPU. Disks can, cold, and that is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.kvm.conftest import new_daemon
from tests.kvm.traces import machines, traces
from tests.machines import end_daemon
from torpor import Sandbox, Volume
from torpor.base.home import Home
from torpor.errors import SnapshotUnusable
from torpor.layers.manifest import MANIFEST, read_manifest, to_json
from torpor.layers.seal import seal
from torpor.model import SandboxState

Switch = Callable[[str], None]
OTHER = {"qemu": "firecracker", "firecracker": "qemu"}


@pytest.fixture
def switch(kvm_home: Home, driver: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Switch]:
    """Change the home's driver; afterwards it is as before."""

    now = driver

    def to(name: str) -> None:
        nonlocal now
        end_daemon(kvm_home)
        monkeypatch.setenv("TORPOR_DRIVER", name)
        new_daemon(kvm_home)
        now = name

    yield to
    if now != driver:
        to(driver)


@pytest.fixture
def volume(daemon: Home) -> Iterator[Volume]:
    """A volume that goes along."""
    made = Volume.create("moved", size_gib=1 / 16)
    yield made
    made.delete()


def _note_in(volume: Volume, sandbox: Sandbox, word: str) -> list[str]:
    """Write a word into the volume; return all that are in it."""
    sandbox.attach_volume(volume.name, "/data")
    sandbox.exec(f"echo {word} >> /data/words", check=True)
    sandbox.detach_volume("/data")
    sandbox.attach_volume(volume.name, "/data", read_only=True)
    found = sandbox.exec("cat /data/words", check=True).stdout.split()
    sandbox.detach_volume("/data")
    return found


def _let_say(home: Home, snapshot_id: str, **said: str) -> None:
    """Let a snapshot say that its memory was saved elsewhere, while no daemon serves the home."""
    folder = home.snapshots / snapshot_id
    manifest = read_manifest(folder)
    changed = replace(manifest, info=replace(manifest.info, **said))
    path = folder / MANIFEST
    path.chmod(0o600)
    path.write_text(json.dumps(to_json(changed)))
    seal(path)


def test_a_disk_moves_cold_and_memory_waits(
    fresh: Sandbox, volume: Volume, kvm_home: Home, driver: str, switch: Switch
) -> None:
    """From this driver to the other: the way back is what the other's round of this test goes."""
    fresh.exec("echo disk > /root/kept; echo ram > /dev/shm/kept; sync", check=True)
    _note_in(volume, fresh, driver)
    snapshot, other = fresh.snapshot(), fresh.snapshot()
    fresh.hibernate()
    assert not machines(kvm_home)
    switch(OTHER[driver])
    for attempt in (fresh.wake, lambda: Sandbox.restore(snapshot.id)):
        with pytest.raises(SnapshotUnusable, match=f"its driver was {driver}") as caught:
            attempt()
        assert "cold" in str(caught.value.hint)
    assert fresh.refresh().state is SandboxState.HIBERNATED
    with Sandbox.restore(snapshot.id, allow_cold=True) as moved:
        assert moved.info.boot_mode == "cold"
        assert moved.exec("cat /root/kept; ls /dev/shm/kept").stdout == "disk\n"
        moved.exec("echo moved > /root/kept; sync", check=True)
        there = moved.snapshot()
        with Sandbox.restore(there.id) as copy:
            assert copy.info.boot_mode == "restore", "it is the other driver's from now on"
            assert copy.exec("cat /root/kept").stdout == "moved\n"
        assert _note_in(volume, moved, OTHER[driver]) == [driver, OTHER[driver]]
        moved.hibernate()
        end_daemon(kvm_home)
        _let_say(kvm_home, snapshot.id, driver_version="0.0.1")
        _let_say(kvm_home, other.id, cpu="a CPU of elsewhere")
        switch(driver)
        before, known = traces(kvm_home), {one.id for one in Sandbox.list()}
        for point, words in ((snapshot, "version was 0.0.1"), (other, "CPU was a CPU of")):
            with pytest.raises(SnapshotUnusable, match=words) as caught:
                Sandbox.restore(point.id)
            assert "cold" in str(caught.value.hint)
        assert (traces(kvm_home), {one.id for one in Sandbox.list()}) == (before, known)
        assert fresh.exec("cat /root/kept /dev/shm/kept").stdout == "disk\nram\n", "it slept on"
        assert _note_in(volume, fresh, "back") == [driver, OTHER[driver], "back"]
        assert moved.refresh().state is SandboxState.HIBERNATED
