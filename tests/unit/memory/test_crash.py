"""A writer that is killed, and a disk that is really full: what was acknowledged is there, the rest is absent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torpor.errors import InsufficientResources, TorporError
from torpor.memory import EpisodeInput, Memory, Space

pytestmark = pytest.mark.crash

WRITER = """
import sys
from torpor.memory import Memory
mem = Memory.open(sys.argv[1]).space("a")
n = 0
while True:
    made = mem.record(f"My number {n} is {n}.")
    if n % 7 == 3:
        mem.consolidate()
    if n % 10 == 9:
        mem.erase(episode=made.id)
    else:
        print(n, flush=True)
    n += 1
"""


@pytest.mark.parametrize("pause_s", [0.05, 0.21, 0.4])
def test_a_killed_writer_loses_nothing_that_it_acknowledged(path: Path, pause_s: float) -> None:
    Memory.open(path).close()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    first = writer.stdout.readline()
    time.sleep(pause_s)
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read()
    writer.stdout.close()
    writer.wait()
    said = {int(line) for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")}
    with Memory.open(path) as memory:
        mem = memory.space("a")
        kept = {e.content for e in mem.episodes()}
        assert {f"My number {n} is {n}." for n in said} <= kept
        assert memory.verify_chain().ok
        mem.record("it goes on")
        mem.consolidate()
        assert memory.verify_chain().ok


def _fill(mem: Space, kept: list[str]) -> None:
    for n in range(1000):
        made = mem.record(f"{n} " + "word " * 4000)
        kept.append(made.id)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _export(there: Memory, big: Path, folder: Path) -> None:
    with Memory.open(big) as memory:
        memory.export(folder / "x.jsonl")


def _import(there: Memory, big: Path, folder: Path) -> None:
    there.import_(big.with_suffix(".jsonl"))


def _salvage(there: Memory, big: Path, folder: Path) -> None:
    Memory.salvage(big, to=folder / "x.jsonl")


@pytest.mark.parametrize("step", [_export, _import, _salvage])
def test_a_full_disk_leaves_nothing_half_done(
    small_disk: Path, tmp_path: Path, step: Callable[[Memory, Path, Path], None]
) -> None:
    big = tmp_path / "big.db"
    with Memory.open(big) as memory:
        memory.space("a").record_many([EpisodeInput("word " * 20_000)] * 30)
        memory.export(tmp_path / "big.jsonl")
    with Memory.open(small_disk / "m.db") as memory:
        with pytest.raises(InsufficientResources):
            step(memory, big, small_disk)
        assert memory.verify_chain().ok
        assert memory.agents() == ()
    assert {p.name for p in small_disk.iterdir()} <= {"m.db", "m.db-wal", "m.db-shm"}


def test_an_erasure_that_a_full_disk_stops_took_nothing(small_disk: Path) -> None:
    with Memory.open(small_disk / "m.db") as memory:
        mem = memory.space("a")
        kept: list[str] = []
        with pytest.raises(InsufficientResources):
            _fill(mem, kept)
        with pytest.raises(InsufficientResources):
            mem.erase(subject="word")
        assert [e.id for e in mem.episodes()] == kept
        assert mem.recall("word").items
        assert memory.verify_chain().ok


def test_a_disk_that_is_really_full_is_said_and_survived(small_disk: Path) -> None:
    path = small_disk / "m.db"
    kept: list[str] = []
    with Memory.open(path) as memory:
        mem = memory.space("a")
        with pytest.raises(InsufficientResources):
            _fill(mem, kept)
        assert kept
        for _ in range(3):
            with pytest.raises(TorporError):
                mem.record("x " * 50_000)
        assert [e.id for e in mem.episodes()] == kept
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    with Memory.open(path) as memory:
        mem = memory.space("a")
        assert [e.id for e in mem.episodes()] == kept
        assert memory.verify_chain().ok
        mem.record("there is room again")
