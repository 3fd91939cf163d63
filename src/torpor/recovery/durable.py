"""`Durable`: workflows that outlive the daemon, on DBOS, which is imported when the first one is needed and not before.

A workflow is a plain function in a thread of DBOS. Each of its steps is a coroutine of ours that runs in the
daemon's loop (`run`), and what it returned is written down, so that the next daemon goes on behind it. A workflow
waits in `wait`, which a word for it (`send`) ends at once. When the daemon stops, `Stopping` is raised in every
workflow: it is no `Exception`, so DBOS takes the workflow as interrupted, not as ended. So is `Interrupted`, when what
a step did cannot be written down because the disk is full: the step is done again when there is room.

One daemon has one `Durable`; DBOS allows one in a process. Its database is `workflows.db` in the home. It listens on
no port, sends nothing anywhere, and what the environment says to it is taken out of the environment.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from sqlalchemy.exc import OperationalError

from torpor.base.aio import Supervisor, finish
from torpor.base.home import Home
from torpor.db.database import translate
from torpor.errors import InsufficientResources

log = logging.getLogger(__name__)
T = TypeVar("T")

VERSION = "2"
"""Raised when the steps of a workflow change: one that an older daemon began is then not gone on with."""
WORKFLOWS = ("torpor.recovery.changes.workflow", "torpor.recovery.drills.workflow")
"""Modules whose workflows have to be known before the first one is gone on with."""
_LAUNCH_S = 120.0
_STOP_S = 10.0
_PRUNED_MOST = 500
_AGAIN_S = 30.0
"""After so long it is looked whether what was interrupted can go on."""


class Stopping(BaseException):
    """Raised in a workflow when the daemon stops. The next daemon goes on with the workflow."""


class Interrupted(BaseException):
    """Raised in a workflow that the host has no room for now. It goes on behind its last step when there is."""


class Durable:
    """Starts workflows, talks to them, and is the bridge to the daemon's loop."""

    _active: ClassVar[Durable | None] = None

    def __init__(self, home: Home) -> None:
        self._home = home
        self._dbos: ModuleType | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._launching = asyncio.Lock()
        self._lock = threading.Lock()
        self._running: set[concurrent.futures.Future[Any]] = set()
        self._words: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self._working = 0
        self._idle = threading.Condition(self._lock)
        self._stopping = False
        self._resuming = Supervisor(_failed)
        self.acts: dict[str, Any] = {}
        """What workflows do their steps with, by the name that they look for."""

    @classmethod
    def active(cls) -> Durable:
        """Return the one whose workflow this thread runs."""
        if cls._active is None:
            raise Stopping
        return cls._active

    # ---- asked by the daemon, in its loop ----

    async def launch(self) -> None:
        """Begin; goes on with what an earlier daemon left. Nothing happens the second time.

        Raises:
            InsufficientResources: the disk is full.
        """
        async with self._launching:
            if self._dbos is None:
                self._loop = asyncio.get_running_loop()
                await finish(self._launched(), within_s=_LAUNCH_S)  # half of it would be none

    async def go_on(self) -> None:
        """Do the same for what an earlier daemon left, as soon as the disk has room for it."""
        while True:
            try:
                return await self.launch()
            except InsufficientResources as exc:
                log.warning("what an earlier daemon left waits: %s", exc.message)
            await asyncio.sleep(_AGAIN_S)

    async def _launched(self) -> None:
        self._dbos = await asyncio.to_thread(self._launch)

    def _launch(self) -> ModuleType:
        for name in [name for name in os.environ if name.startswith("DBOS")]:
            del os.environ[name]
        import dbos

        from torpor.recovery import dbos_setup

        for name in WORKFLOWS:
            importlib.import_module(name)
        Durable._active = self  # workflows that are gone on with look for it at once
        try:
            dbos_setup.launch(self._home.workflows, VERSION)
        except BaseException:
            Durable._active = None
            raise
        return dbos

    @property
    def is_launched(self) -> bool:
        """Whether `launch` was called."""
        return self._dbos is not None

    async def start(self, workflow: Callable[..., None], workflow_id: str, *args: object) -> None:
        """Start a workflow with its id as first argument; durably begun when this returns. One that exists is let be.

        Raises:
            InsufficientResources: the disk is full.
        """
        await self.launch()
        dbos = self._dbos
        assert dbos is not None

        def work() -> None:
            with dbos.SetWorkflowID(workflow_id):
                dbos.DBOS.start_workflow(workflow, workflow_id, *args)

        await self._written(work)

    async def send(self, workflow_id: str, message: object, topic: str) -> None:
        """Give a workflow a message; durable when this returns, and the workflow looks at it at once. Raises as `start`."""
        await self.launch()
        dbos = self._dbos
        assert dbos is not None
        await self._written(lambda: dbos.DBOS.send(workflow_id, message, topic))
        self.nudge(workflow_id)

    async def _written(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OperationalError as exc:
            raise translate(exc, str(self._home.workflows)) from exc

    async def is_alive(self, workflow_id: str) -> bool:
        """Return whether a workflow is under way, and is one that this daemon goes on with."""
        status = await self._status(workflow_id)
        return (
            status is not None
            and status.status in ("PENDING", "ENQUEUED")
            and status.app_version == VERSION
        )

    async def is_known(self, workflow_id: str) -> bool:
        """Return whether there is, or was, such a workflow."""
        return await self._status(workflow_id) is not None

    async def _status(self, workflow_id: str) -> Any:
        await self.launch()
        dbos = self._dbos
        assert dbos is not None
        return await asyncio.to_thread(dbos.DBOS.get_workflow_status, workflow_id)

    async def prune(self, before: datetime) -> None:
        """Forget the workflows that ended before that time."""
        dbos = self._dbos
        assert dbos is not None
        await asyncio.to_thread(self._prune, dbos, before)

    def _prune(self, dbos: ModuleType, before: datetime) -> None:
        until_ms = before.timestamp() * 1000
        found = dbos.DBOS.list_workflows(
            status=["SUCCESS", "ERROR"], limit=_PRUNED_MOST, load_input=False, load_output=False
        )
        old = [one.workflow_id for one in found if (one.updated_at or 0) < until_ms]
        if old:
            dbos.DBOS.delete_workflows(old)

    def nudge(self, workflow_id: str) -> None:
        """Let a workflow that waits look around."""
        with self._lock:
            self._words[workflow_id].set()

    async def aclose(self) -> None:
        """Interrupt every workflow, for the next daemon to go on with. Call it before the engine is closed."""
        async with self._launching:
            await self._resuming.aclose()
            if self._dbos is None:
                return
            with self._lock:
                self._stopping = True
                for future in self._running:
                    future.cancel()
                for word in self._words.values():
                    word.set()
            await asyncio.to_thread(self._end, self._dbos)
            self._dbos = None

    def _end(self, dbos: ModuleType) -> None:
        with self._idle:
            if not self._idle.wait_for(lambda: self._working == 0, _STOP_S):
                log.warning("%d workflows did not stop within %g s", self._working, _STOP_S)
        dbos.DBOS.destroy()
        if Durable._active is self:
            Durable._active = None

    # ---- asked by workflows, in their threads ----

    @contextlib.contextmanager
    def working(self, workflow_id: str) -> Iterator[None]:
        """Enter for as long as a workflow runs here. One that is interrupted is gone on with later."""
        with self._lock:
            self._check()
            self._working += 1
        try:
            yield
        except Interrupted as exc:
            log.warning("workflow %s waits: %s", workflow_id, exc)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._resume_later, workflow_id)
            raise
        finally:
            with self._idle:
                self._working -= 1
                self._idle.notify_all()

    def _resume_later(self, workflow_id: str) -> None:
        if not self._stopping:
            self._resuming.launch(self._resume(workflow_id), name=f"resume {workflow_id}")

    async def _resume(self, workflow_id: str) -> None:
        dbos = self._dbos
        assert dbos is not None
        while True:
            await asyncio.sleep(_AGAIN_S)
            try:
                await self._written(lambda: dbos.DBOS.resume_workflow(workflow_id) and None)
            except InsufficientResources as exc:
                log.warning("workflow %s waits still: %s", workflow_id, exc)
            else:
                return

    def recorded(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, of which DBOS writes something down. Raises `Interrupted` when it cannot."""
        try:
            return call()
        except OperationalError as exc:
            raise Interrupted(translate(exc, str(self._home.workflows)).message) from exc

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the daemon's loop and return what it returns.

        Raises:
            Stopping: the daemon stops.
            Interrupted: the host has no room for what it does, or for writing it down.
            Exception: what it raises.
        """
        assert self._loop is not None
        with self._lock:
            if self._stopping:
                work.close()
                raise Stopping
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._running.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Stopping from None  # nobody else cancels it
        except InsufficientResources as exc:
            raise Interrupted(exc.message) from exc
        finally:
            with self._lock:
                self._running.discard(future)

    def wait(self, workflow_id: str, seconds: float) -> None:
        """Return after so many seconds, or as soon as there may be a word for the workflow. Raises `Stopping`."""
        with self._lock:
            self._check()
            word = self._words[workflow_id]
        word.wait(max(0.0, seconds))
        word.clear()
        with self._lock:
            self._check()

    def forget(self, workflow_id: str) -> None:
        """Forget a workflow that ends."""
        with self._lock:
            self._words.pop(workflow_id, None)

    def _check(self) -> None:
        if self._stopping:
            raise Stopping


def _failed(name: str, error: BaseException) -> None:
    log.error("%s: %s", name, error, exc_info=error)
