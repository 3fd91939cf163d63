"""One memory used from many threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torpor.memory import Memory, Space


def in_threads(*calls: Callable[[], None]) -> list[BaseException]:
    failed: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as exc:  # noqa: BLE001  # handed to the test
            failed.append(exc)

    threads = [threading.Thread(target=run, args=(c,)) for c in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def test_writers_and_readers_do_not_disturb_each_other(memory: Memory, mem: Space) -> None:
    def write(who: int) -> None:
        for n in range(15):
            mem.record(f"writer {who} says word{n}")
            mem.remember(f"thing {who}", "count", n)

    def read() -> None:
        for _ in range(20):
            found = mem.recall("word3 count")
            assert len(found) <= 8
            mem.facts()

    failed = in_threads(lambda: write(1), lambda: write(2), read, read)
    assert failed == []
    assert len([e for e in mem.episodes() if e.content.startswith("writer")]) == 30
    assert memory.verify_chain().ok


def test_two_handles_on_one_file_take_turns(memory: Memory, mem: Space) -> None:
    path = memory._store.path  # type: ignore[attr-defined]
    with Memory.open(path) as other:
        theirs = other.space("hermes-1")
        failed = in_threads(
            *(lambda s=space: [s.record("words") for _ in range(15)] for space in (mem, theirs))  # type: ignore[misc]
        )
        assert failed == []
        assert len(mem.episodes()) == 30
        assert memory.verify_chain().ok
