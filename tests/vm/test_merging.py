"""Long chains of a real machine become short in the background, and every point of its life stays what it was."""

from __future__ import annotations

import time
from pathlib import Path

from tests.vm.conftest import end_daemon
from torpor import Sandbox, Snapshot
from torpor.base.home import Home
from torpor.layers.merges import NOTE
from torpor.layers.plan import DISK_MOST
from torpor.sandboxes.merging import PERIOD_S

COUNT = DISK_MOST + 2
"""Snapshots in a row, each with a disk layer of its own: too many."""


def _written(sandbox: Sandbox, number: int) -> None:
    sandbox.exec(
        f"head -c 300000 /dev/urandom > /workspace/{number}; echo {number} > /workspace/last; "
        f"rm -f /workspace/{number - 3}; sha256sum /workspace/[0-9]* > /workspace/sums; sync",
        check=True,
    )


def _is_whole(sandbox: Sandbox, number: int) -> None:
    said = sandbox.exec(
        "cat /workspace/last && sha256sum --quiet -c /workspace/sums && ls /workspace"
    )
    assert said.exit_code == 0, said.stdout + said.stderr
    kept = {str(n) for n in range(max(0, number - 2), number + 1)}
    assert set(said.stdout.split()[1:]) == {*kept, "last", "sums"}
    assert said.stdout.split()[0] == str(number)


def _merged(home: Home) -> set[Path]:
    return set(home.layers.glob(f"*{NOTE}"))


def test_long_chains_of_disk_layers_are_merged_and_nothing_changes(
    base: str, vm_home: Home
) -> None:
    before = _merged(vm_home)
    taken: list[Snapshot] = []
    with Sandbox.create(template=base) as sbx:
        sbx.exec(
            "nohup sh -c 'while :; do date +%s%N >> /dev/shm/tick; sleep 0.2; done' >/dev/null 2>&1 &"
        )
        for number in range(COUNT):
            _written(sbx, number)
            taken.append(sbx.snapshot())
        end = time.monotonic() + 3 * PERIOD_S + 60
        while not _merged(vm_home) - before:
            assert time.monotonic() < end, "nothing was merged"
            time.sleep(1)
        tick = sbx.exec("tail -n 1 /dev/shm/tick").stdout
        _is_whole(sbx, COUNT - 1)
        assert sbx.exec("sleep 0.5; tail -n 1 /dev/shm/tick").stdout > tick, "it ran on meanwhile"
        for number in (0, COUNT // 2, COUNT - 1):
            assert taken[number].verify().ok
            with Sandbox.restore(taken[number].id) as there:
                _is_whole(there, number)
        _written(sbx, COUNT)
        later = sbx.snapshot()
        end_daemon(vm_home)  # the next one knows the merged layers too
        with Sandbox.restore(later.id) as there:
            _is_whole(there, COUNT)
        sbx.hibernate()
        _is_whole(sbx, COUNT)
        mine = sbx.snapshots()
    for snapshot in mine:
        Snapshot.delete(snapshot.id)
