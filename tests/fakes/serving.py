"""Runs the real server over a fake engine in a thread, and a proxy that loses connections."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.fakes.engine import FakeEngine
from torpor.access import Access, open_access
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.databases.desk import DatabaseDesk, open_databases
from torpor.db.databases import DatabaseRow
from torpor.model_access import Scope
from torpor.model_databases import DatabaseId
from torpor.recovery.desk import Recovery
from torpor.server.app import serving_app
from torpor.server.daemon import listening
from torpor.server.gate import TcpDoor, UnixDoor
from torpor.server.hosts import Hosts
from torpor.server.listen import listen_tcp, listen_unix

T = TypeVar("T")


class ServerThread:
    """An event loop in a thread, with the server in it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="torpor-fake.")
        self.engine = FakeEngine(folder=Path(self._folder.name))
        self.databases: DatabaseDesk | None = None
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def add_database(self, name: str, workspace: str) -> str:
        """Let there be a database, without a machine; return its id."""
        row = DatabaseRow(
            id=DatabaseId(new_id("db")),
            name=name,
            workspace=workspace,
            created_at=datetime.now(UTC),
            state="ready",
            size_bytes=1 << 30,
            ram_mib=512,
            vcpus=1,
            port=1,
        )
        assert self.databases is not None
        self.run(self.databases._shelf.insert(row))
        self.databases._passwords.write(row.id, "p" * 32)
        return row.id

    def guest(self, sandbox_id: str):  # type: ignore[no-untyped-def]
        """Return the fake guest of a sandbox."""
        return self.engine.sandboxes[sandbox_id].guest  # type: ignore[index]

    def wait_until(self, condition: Callable[[], bool], *, within_s: float = 5) -> None:
        """Return when `condition` holds."""
        pause = threading.Event()
        for _ in range(int(within_s / 0.01)):
            if condition():
                return
            pause.wait(0.01)
        raise AssertionError("it did not come true")

    def close(self) -> None:
        """End the loop."""
        self.run(self.engine.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self._folder.cleanup()


class Tcp(NamedTuple):
    """A TCP listener in a test, and what it knows of tokens."""

    url: str
    server: ServerThread
    access: Access
    home: Home

    def token(
        self, name: str, scope: Scope = Scope.USE, workspace: str = "default", **kwargs: Any
    ) -> str:
        """Return a fresh token."""
        made = self.server.run(
            self.access.tokens.create(name, scope=scope, workspace=workspace, **kwargs)
        )
        return made.token


@contextlib.contextmanager
def serving(home: Home) -> Iterator[ServerThread]:
    """Serve a fake engine on the home's Unix socket."""
    home.prepare()
    server = ServerThread()
    access = open_access(home)
    recovery = server.run(_recovery(home, server.engine))
    databases = server.databases = server.run(_databases(home, server.engine))
    app = serving_app(server.engine, access, recovery, databases)
    context = listening(server.run(app.__aenter__()), listen_unix(home.socket), UnixDoor())
    server.run(context.__aenter__())
    try:
        yield server
    finally:
        server.run(context.__aexit__(None, None, None))
        server.run(app.__aexit__(None, None, None))
        server.run(databases.aclose())
        server.run(recovery.aclose())
        access.close()
        server.close()


async def _recovery(home: Home, engine: FakeEngine) -> Recovery:
    recovery = Recovery(home, engine)
    await recovery.start()
    return recovery


async def _databases(home: Home, engine: FakeEngine) -> DatabaseDesk:
    databases = open_databases(home, engine)
    await databases.start()
    return databases


@contextlib.contextmanager
def serving_tcp(home: Home, **door: Any) -> Iterator[Tcp]:
    """Serve a fake engine on a TCP port."""
    home.prepare()
    server = ServerThread()
    access = open_access(home)
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.getsockname()[1]
    recovery = server.run(_recovery(home, server.engine))
    databases = server.databases = server.run(_databases(home, server.engine))
    app = serving_app(server.engine, access, recovery, databases)
    context = listening(server.run(app.__aenter__()), listener, TcpDoor(access, Hosts(), **door))
    server.run(context.__aenter__())
    try:
        yield Tcp(f"http://127.0.0.1:{port}", server, access, home)
    finally:
        server.run(context.__aexit__(None, None, None))
        server.run(app.__aexit__(None, None, None))
        server.run(databases.aclose())
        server.run(recovery.aclose())
        access.close()
        server.close()


class CuttingProxy:
    """Forwards to the daemon's socket, and cuts each of the first connections after so many bytes."""

    def __init__(self, server: ServerThread, target: Path, path: Path, cuts: list[int]) -> None:
        self.url = f"unix://{path}"
        self.cuts = cuts
        self.connections = 0
        self.on_cut: Callable[[], Coroutine[Any, Any, object]] | None = None
        """Called, once, when the first connection is cut and before its client knows."""
        self._server = server
        self._target = target
        self._listener = server.run(asyncio.start_unix_server(self._serve, path))
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        self.connections += 1
        budget = self.cuts.pop(0) if self.cuts else None
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        upward = asyncio.create_task(_copy(reader, up_writer, None))
        try:
            await _copy(up_reader, writer, budget)
            if budget is not None and self.on_cut is not None:
                hook, self.on_cut = self.on_cut, None
                await hook()
        except asyncio.CancelledError:
            pass  # a cancelled handler would be logged
        finally:
            upward.cancel()
            for end in (writer, up_writer):
                end.close()

    def close(self) -> None:
        """Stop."""

        async def work() -> None:
            self._listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._server.run(work())


async def _copy(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, budget: int | None
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(4096 if budget is None else max(1, min(4096, budget))):
            target.write(data)
            await target.drain()
            if budget is not None:
                budget -= len(data)
                if budget <= 0:
                    return
