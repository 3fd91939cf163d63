"""`torpord`: holds the home's lock for life, runs the engine, and serves it on a Unix socket and by choice TCP.

TCP is opened by `--host`, or later by a client that holds a stream open for it (`routes/listeners`).

SIGTERM and SIGINT stop it; the machines run on and the next daemon adopts them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp
from typing_extensions import override

from torpor import __version__
from torpor.access.opening import Access, open_access
from torpor.base.aio import Supervisor
from torpor.base.clock import SystemClock
from torpor.base.fsio import locked
from torpor.base.home import Home
from torpor.errors import Busy, TorporError, error_to_wire
from torpor.recovery.desk import Recovery
from torpor.server import limits
from torpor.server.access_log import AccessLog
from torpor.server.app import serving_app
from torpor.server.compat.dispatch import Dispatch
from torpor.server.gate import Door, Gate, TcpDoor, UnixDoor
from torpor.server.hosts import Hosts
from torpor.server.listen import TCP_PORT, listen_tcp, listen_unix
from torpor.server.previews.proxy import Previews
from torpor.server.previews.upgrade import Upgrades
from torpor.server.protocol import Connection, Socket
from torpor.server.traces import start_traces
from torpor.server.watch import Watch

log = logging.getLogger("torpor.server")

_QUIET = {
    "alembic": logging.WARNING,
    # every request that is not HTTP is a warning there
    "uvicorn.error": logging.ERROR,
    # it calls each end of a QEMU an error; what matters of that is raised to us
    "qemu.qmp": logging.CRITICAL,
}
"""Loggers of parts that we use, and from which level on they are heard."""

KEEP_ALIVE_S = 75
"""Seconds that an idle connection is kept; clients drop theirs before (30 s), so that none is cut in use."""

GRACE_S = 1
"""Seconds that requests in flight get when the daemon is told to stop."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    home: Home
    host: str | None
    port: int
    allowed_hosts: tuple[str, ...]
    ready_fd: int | None


def quiet_logs() -> None:
    """Let parts that we use speak only from the level on that matters here."""
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the daemon until it is told to stop, then exit; with the error's exit code if it could not start."""
    options = _parse(argv)
    ready = _ReadyPipe(options.ready_fd)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    quiet_logs()
    try:
        with _daemon_lock(options.home):
            os.chdir(options.home.root)
            asyncio.run(_serve(options, ready))
    except TorporError as error:
        ready.tell(json.dumps(error_to_wire(error)))
        log.error("%s%s", error.message, f" (hint: {error.hint})" if error.hint else "")  # noqa: TRY400
        sys.exit(error.exit_code)
    except OSError as exc:
        found = TorporError(f"the daemon cannot use {options.home.root}: {exc}")
        ready.tell(json.dumps(error_to_wire(found)))
        log.exception("the daemon could not start")
        sys.exit(found.exit_code)
    _leave()


def _leave() -> NoReturn:
    """End with exit code 0; a thread that hangs in a call of a library must not keep the process."""
    others = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    if others:
        log.warning("leaving %d threads behind", len(others))
        logging.shutdown()
        os._exit(0)
    sys.exit(0)


def _parse(argv: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="torpord",
        description="Serve this host's sandboxes on a Unix socket and, by choice, TCP.",
    )
    parser.add_argument("--home", type=Path, help="default: $TORPOR_HOME")
    parser.add_argument("--host", help="also listen on this address (a token is always needed)")
    parser.add_argument(
        "--port", type=int, help=f"TCP port, with --host; 0: any; default: {TCP_PORT}"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="also answer to this name on TCP; one that begins with a dot: to all that end with it",
    )
    parser.add_argument(
        "--ready-fd", type=int, help="say `ready` or an error (JSON) here, then close"
    )
    parser.add_argument("--version", action="version", version=__version__)
    found = parser.parse_args(argv)
    if found.host is None and (found.port is not None or found.allow_host):
        parser.error("--port and --allow-host are for TCP, and there is no --host")
    home = Home(found.home.absolute()) if found.home else Home.default()
    return Options(
        home=home,
        host=found.host,
        port=TCP_PORT if found.port is None else found.port,
        allowed_hosts=tuple(found.allow_host),
        ready_fd=found.ready_fd,
    )


@contextlib.contextmanager
def _daemon_lock(home: Home) -> Iterator[None]:
    home.prepare()
    try:
        stack = contextlib.ExitStack()
        stack.enter_context(locked(home.daemon_lock, wait=False))
    except Busy as exc:
        raise Busy(
            f"another daemon serves {home.root}",
            hint="use it, or end it first, or choose another TORPOR_HOME",
            home=home.root,
        ) from exc
    with stack:
        yield


async def _serve(options: Options, ready: _ReadyPipe) -> None:
    from torpor.databases.desk import open_databases
    from torpor.recovery.inventory import before_snapshots
    from torpor.sandboxes.engine import open_engine

    home = options.home
    per_s = limits.requests_per_s(os.environ)
    start_traces(os.environ)
    async with contextlib.AsyncExitStack() as stack:
        engine = open_engine(home, take_inventory=before_snapshots(SystemClock()))
        stack.push_async_callback(engine.aclose)
        access = open_access(home)
        stack.callback(access.close)
        databases = open_databases(home, engine)
        engine.attend_too(databases.attend)
        await engine.start()
        recovery = Recovery(home, engine)
        stack.push_async_callback(recovery.aclose)
        await recovery.start()
        stack.push_async_callback(databases.aclose)
        await databases.start()
        app = await stack.enter_async_context(serving_app(engine, access, recovery, databases))
        app.state.access_log = AccessLog()
        stack.enter_context(app.state.access_log.into(home.access_log))
        app.state.open_tcp = lambda host, port, names: _tcp(app, access, host, port, names, per_s)
        await stack.enter_async_context(listening(app, listen_unix(home.socket), UnixDoor()))
        stack.callback(home.socket.unlink, missing_ok=True)
        if options.host is not None:
            await stack.enter_async_context(
                app.state.open_tcp(options.host, options.port, options.allowed_hosts)
            )
            if not len(access.tokens):
                log.info("nobody has a token yet: torpor token create NAME --scope use")
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        log.info("torpord %s serves %s as process %d", __version__, home.root, os.getpid())
        gc.freeze()  # what serves is never garbage
        gc.enable()
        ready.tell("ready")
        await stop.wait()
        log.info("stopping; machines run on")


@contextlib.asynccontextmanager
async def _tcp(
    app: FastAPI, access: Access, host: str, port: int, names: Iterable[str], per_s: float
) -> AsyncIterator[int]:
    """Listen on TCP while the context lasts, and enter with the port."""
    listener = listen_tcp(host, port)
    port = listener.getsockname()[1]
    hosts = Hosts([host, *names])
    door = TcpDoor(access, hosts, per_s=per_s)
    async with listening(app, listener, door):
        log.info("listening on %s", address(host, port))
        with app.state.listeners.noted(host, port, tuple(names)):
            yield port
    log.info("no longer listening on %s", address(host, port))


def address(host: str, port: int) -> str:
    """Return the URL of a TCP listener."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Leaves signals to us, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


@contextlib.asynccontextmanager
async def listening(
    app: FastAPI, listener: socket.socket, door: Door
) -> AsyncIterator[uvicorn.Server]:
    """Serve on `listener` while the context lasts; requests in flight get `GRACE_S` seconds at its end."""
    gate: ASGIApp = Dispatch(Gate(app, door))
    upgrades: Upgrades | None = None
    if isinstance(door, TcpDoor):  # browsers come no other way
        gate = Previews(gate, door.hosts, door.preview_door(), app.state.engine, app.state.metrics)
        upgrades = Upgrades(gate)
    server = _Server(
        uvicorn.Config(
            Watch(gate, app.state.metrics, app.state.access_log, upgrades),
            http=Connection,
            access_log=False,
            log_config=None,
            log_level="warning",
            lifespan="off",
            ws=Socket,
            ws_max_size=limits.MESSAGE_MOST_BYTES,
            ws_per_message_deflate=False,
            # a client whose program reads nothing does not answer, and is none the worse for it
            ws_ping_timeout=None,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=limits.HEAD_LIMIT_BYTES,
        )
    )
    task = Supervisor(_http_failed).spawn(server.serve(sockets=[listener]), name="http")
    listens = Supervisor(_http_failed).spawn(_wait(server.listens), name="http listens")
    await asyncio.wait({task, listens}, return_when=asyncio.FIRST_COMPLETED)
    listens.cancel()
    try:
        if task.done():
            task.result()
        yield server
    finally:
        server.should_exit = True
        if upgrades is not None:
            await upgrades.aclose()
        await asyncio.wait({task})


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _http_failed(name: str, error: BaseException) -> None:
    log.error("%s failed", name, exc_info=error)


class _ReadyPipe:
    """Tells whoever started us, once, how it went."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def tell(self, line: str) -> None:
        """Say `line` and close; nothing happens the second time."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        with contextlib.suppress(OSError):
            os.write(fd, line.encode("utf-8", "replace") + b"\n")
        with contextlib.suppress(OSError):
            os.close(fd)
