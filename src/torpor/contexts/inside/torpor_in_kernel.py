"""Runs inside a Python kernel: gives it new random state whenever its machine went on from a snapshot.

Two ways lead to it. A thread waits for the generation file to be replaced, so that also code that runs meanwhile gets
new state, and says so in the file `drawn`, for which the hook in on-restore.d waits. And before every
execution the file is looked at, whatever has become of the thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from typing import Any

import torpor_generation as generation

_IN_CLOSE_WRITE, _IN_MOVED_TO = 0x8, 0x80


class Randomness:
    """Redraws the random state of the modules that keep some."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._seen, said = generation.read()
        self._confirm(said)

    def look(self, *_: object) -> None:
        """Redraw if the machine is in another life than at the last look."""
        with self._lock:
            seen, said = generation.read()
            if seen == self._seen:
                return
            self._seen = seen
            if generation.wants_new_randomness(said):
                redraw()
            self._confirm(said)

    def _confirm(self, said: dict[str, Any]) -> None:
        temp = f"{self._folder}/.drawn"
        with contextlib.suppress(OSError):
            with open(temp, "w", encoding="ascii") as file:
                file.write(f"{os.getpid()} {said.get('generation', 0)}\n")
            os.rename(temp, f"{self._folder}/drawn")

    def watch(self) -> None:
        """Look whenever the generation file is replaced; for a thread, for ever."""
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_CLOEXEC)
        folder = os.path.dirname(generation.PATH).encode()
        if fd < 0 or libc.inotify_add_watch(fd, folder, _IN_CLOSE_WRITE | _IN_MOVED_TO) < 0:
            return
        while os.read(fd, 4096):
            self.look()


def redraw() -> None:
    """Seed `random` and numpy's global generator from the kernel's randomness."""
    random.seed()
    seed = getattr(sys.modules.get("numpy.random"), "seed", None)
    if seed is not None:
        seed([int.from_bytes(os.urandom(4), "little") for _ in range(8)])


def install(shell: Any, folder: str) -> None:
    """Do it for this kernel, from now on."""
    randomness = Randomness(folder)
    shell.events.register("pre_execute", randomness.look)
    threading.Thread(target=randomness.watch, name="torpor-randomness", daemon=True).start()
