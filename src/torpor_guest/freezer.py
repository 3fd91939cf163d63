"""Freezing and thawing the file systems, with a dead man who thaws when the host does not come back.

Neither needs a thread of the pool, whose threads may all be blocked in writes: freezing has a thread of its own,
and the dead man, who is there from before the first freeze on, does all thawing in his.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable

from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.gate import Gate
from torpor_guest.kernel import Kernel
from torpor_guest.mounts import open_volume, volumes
from torpor_guest.threads import in_own_thread, start_thread, tell

RECORD = "/run/torpor/frozen"
"""The places that are frozen now, for the agent that comes after one that died."""

_log = logging.getLogger("torpor")


class Freezer:
    """The guest's file systems: written out, frozen, thawed. Shuts the gate for as long as they are frozen."""

    def __init__(self, kernel: Kernel, gate: Gate) -> None:
        self._kernel = kernel
        self._gate = gate
        self._hold: _Hold | None = None
        self._is_flushing = False

    @property
    def is_frozen(self) -> bool:
        """Whether the file systems are frozen, or being so."""
        return self._hold is not None

    def recover(self) -> None:
        """Thaw what an agent before us left frozen. Must come before anything that writes."""
        record = self._kernel.path(RECORD)
        try:
            places = json.loads(record.read_bytes())
        except (OSError, ValueError):
            return
        for place in reversed(places if isinstance(places, list) else []):
            with contextlib.suppress(OSError):
                fd = os.open(str(place), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    self._kernel.thaw(fd)
                finally:
                    os.close(fd)
        record.unlink()
        _log.warning("thawed what the agent before had frozen: %s", places)

    async def sync(self) -> None:
        """Write all dirty pages out.

        Raises:
            AgentError: one could not be written, now or since somebody last asked.
        """
        await self._gate.passed()
        await in_own_thread(flush, self._kernel)

    async def freeze(self, dead_man_s: float) -> list[str]:
        """Write all out, then freeze; return where. After `dead_man_s` without a thaw all is thawed.

        Raises:
            AgentError: they are frozen already, or one cannot be frozen; then none is.
        """
        if self._hold or self._is_flushing:
            raise AgentError(errors.CONFLICT, "the file systems are frozen already")
        self._is_flushing = True
        try:
            await self.sync()
        finally:
            self._is_flushing = False
        hold = _Hold(self._kernel, self._over)
        self._gate.shut()
        try:
            hold.start(dead_man_s)
        except BaseException:
            self._gate.open()
            raise
        self._hold = hold
        try:
            return await asyncio.shield(hold.taken)
        except BaseException as exc:
            hold.ask()
            if isinstance(exc, AgentError):
                await asyncio.shield(hold.released)
            raise

    async def thaw(self) -> bool:
        """Thaw; return whether all was frozen until now."""
        if self._hold is None:
            return False
        self._hold.ask()
        return await asyncio.shield(self._hold.released)

    def close(self) -> None:
        """Thaw, and wait for it: the agent ends."""
        if self._hold:
            self._hold.ask()
            self._hold.join(5.0)

    def _over(self) -> None:
        problems = self._hold.problems if self._hold else []
        self._hold = None
        self._gate.open()
        for problem in problems:
            _log.warning("%s", problem)


class _Hold:
    """One time of being frozen: the thread that freezes, and the dead man."""

    def __init__(self, kernel: Kernel, on_over: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.taken: asyncio.Future[list[str]] = self._loop.create_future()
        self.released: asyncio.Future[bool] = self._loop.create_future()
        self.released.add_done_callback(lambda _: on_over())
        self.problems: list[str] = []
        self._kernel = kernel
        self._asked = threading.Event()
        self._ended = threading.Event()
        self._taker_ended = threading.Event()
        self._lock = threading.Lock()
        self._is_over = False
        self._open: list[int] = []
        self._frozen: list[int] = []

    def start(self, dead_man_s: float) -> None:
        """Begin."""
        deadline = time.monotonic() + dead_man_s
        start_thread(lambda: self._stand_by(deadline))

    def ask(self) -> None:
        """Have it thawed."""
        self._asked.set()

    def join(self, timeout_s: float) -> None:
        """Wait until it is thawed."""
        self._ended.wait(timeout_s)

    def _stand_by(self, deadline: float) -> None:
        """Be the dead man."""
        try:
            start_thread(self._take)
        except AgentError as exc:
            tell(self._loop, self.taken, failure=exc)
            self._taker_ended.set()
            self._asked.set()
        while not self._asked.is_set() and (left_s := deadline - time.monotonic()) > 0:
            self._asked.wait(left_s)
        was_asked = self._asked.is_set()
        is_whole = self._let_go()
        self._taker_ended.wait()
        for fd in self._open:
            os.close(fd)
        with contextlib.suppress(OSError):
            self._kernel.path(RECORD).unlink()
        self._ended.set()
        if not was_asked:
            self.problems.append("nobody came to thaw the file systems: they were let go")
        tell(self._loop, self.released, was_asked and is_whole)

    def _let_go(self) -> bool:
        """Thaw what is frozen, the last first; return whether all of it still was."""
        with self._lock:
            self._is_over = True
            is_whole = bool(self.taken.done())
            for fd in reversed(self._frozen):
                try:
                    self._kernel.thaw(fd)
                except OSError as exc:
                    is_whole = False
                    self.problems.append(f"thaw: {exc}")
            self._frozen.clear()
        return is_whole

    def _take(self) -> None:
        try:
            tell(self._loop, self.taken, self._freeze_all())
        except AgentError as exc:
            tell(self._loop, self.taken, failure=exc)
        except Exception as exc:  # noqa: BLE001  # a failure to freeze must always be told
            failure = AgentError(errors.FAILED, f"the file systems cannot be frozen: {exc}")
            tell(self._loop, self.taken, failure=failure)
        finally:
            self._taker_ended.set()

    def _freeze_all(self) -> list[str]:
        places = []
        for volume in volumes(self._kernel.mounts()):
            if volume.is_writable:
                fd, place = open_volume(volume)
                self._open.append(fd)
                places.append(place)
        record = self._kernel.path(RECORD)
        record.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        record.write_text(json.dumps(places))
        for fd, place in zip(self._open, places):  # noqa: B905  # strict= is new in 3.10
            try:
                self._kernel.freeze(fd)
            except OSError as exc:
                raise AgentError(
                    errors.FAILED,
                    f"the file system at {place} cannot be frozen: {exc.strerror or exc}",
                    hint="unmount it, mount it read-only, or take a snapshot with consistency=crash",
                    path=place,
                ) from exc
            with self._lock:
                if self._is_over:
                    self._kernel.thaw(fd)
                    raise AgentError(errors.FAILED, "the file systems did not freeze in time")
                self._frozen.append(fd)
        return places


def flush(kernel: Kernel) -> None:
    """Write all dirty pages out; see `Freezer.sync`."""
    kernel.sync_all()
    for volume in volumes(kernel.mounts()):
        try:
            fd, place = open_volume(volume)
        except OSError as exc:
            if not volume.is_writable:
                continue
            raise AgentError(
                errors.FAILED,
                f"the file system at {volume.places[0]} cannot be reached: {exc.strerror}",
                hint="something else is mounted over it; unmount one of them",
            ) from exc
        try:
            kernel.sync(fd)
        except OSError as exc:
            raise AgentError(
                errors.FAILED,
                f"the file system at {place} could not be written to its disk: {exc.strerror}",
                hint="its disk is full or broken; what was written since the last good sync may be lost",
                path=place,
                errno=errors.name_of(exc),
            ) from exc
        finally:
            os.close(fd)
