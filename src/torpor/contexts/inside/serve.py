"""The program behind one context. It keeps an interpreter, and answers requests at a socket in its folder.

    serve.py FOLDER LANGUAGE

It runs in the sandbox as the sandbox's user and lives as long as the context; it is the same process after a
snapshot, a hibernation or a fork. The first line on stdout says whether the interpreter is ready; after that
it writes nothing there. A request is one JSON object up to the end of what the client sends; answers are JSON lines, and
`done` or `refused` is the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from outlet import Outlet
from python_session import Missing

REQUEST_BYTES = 32 << 20
WAITING_MOST = 16
"""Runs that wait for the one before them."""
INTERRUPT_S = 20.0
"""Seconds that code has to stop after it was interrupted at its limit."""
_FLUSH_S = 600.0


class Context:
    """An interpreter and the requests to it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._now: asyncio.Task[dict[str, Any]] | None = None
        self._restarts: list[asyncio.Future[None]] = []
        """Restarts that are asked for. Whoever has the turn carries them out, before any run that waits."""
        self._taking: set[asyncio.Task[None]] = set()
        self.over = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client."""
        try:
            asked = json.loads(await _whole(reader))
            out = Outlet(
                writer,
                output_bytes=int(asked.get("output_limit_bytes", 1 << 20)),
                result_bytes=int(asked.get("result_limit_bytes", 16 << 20)),
            )
            await self._answer(asked, out)
            await asyncio.wait_for(writer.drain(), _FLUSH_S)
        except (ValueError, TypeError, AttributeError, OSError, asyncio.TimeoutError) as exc:
            sys.stderr.write(f"a request was not answered: {exc}\n")
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), _FLUSH_S)

    async def _answer(self, asked: dict[str, Any], out: Outlet) -> None:
        op = asked.get("op")
        if op == "run":
            await self._run(str(asked["code"]), asked.get("timeout_seconds"), out)
        elif op == "interrupt":
            if self._now is not None:
                await self._session.interrupt()
            out.say("done", was_busy=self._now is not None)
        elif op == "restart":
            await self._restart()
            out.say("done")
        elif op == "status":
            out.say("done", busy=self._now is not None, waiting=self._waiting)
        elif op == "stop":
            out.say("done")
            self.over.set()
        else:
            out.say("refused", why="unknown", message=f"there is no request {str(op)[:40]!r}")

    async def _run(self, code: str, timeout_s: float | None, out: Outlet) -> None:
        if self._waiting >= WAITING_MOST:
            out.say("refused", why="busy", message=f"{self._waiting} runs wait already")
            return
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            await self._renew()
            out.say("started")
            self._now = asyncio.ensure_future(self._session.run(code, out))
            end = await self._ended(self._now, timeout_s)
        except Exception as exc:  # such as an interpreter that cannot be started again
            out.say("refused", why="failed", message=f"{exc} {self._session.last_words()}"[:2000])
            return
        finally:
            self._now = None
            try:
                await self._renew()
            finally:
                self._turn.release()
        out.say("done", **{f"{name}_bytes": size for name, size in out.written.items()}, **end)

    async def _ended(
        self, running: asyncio.Task[dict[str, Any]], timeout_s: float | None
    ) -> dict[str, Any]:
        """Return how the code ended; at its limit it is interrupted, and if that does not help, the interpreter ended."""
        await asyncio.wait({running}, timeout=timeout_s)
        if running.done():
            return _how(running)
        await self._session.interrupt()
        await asyncio.wait({running}, timeout=INTERRUPT_S)
        if running.done():
            return {**_how(running), "status": "timeout"}
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await self._session.restart()
        return {"status": "timeout", "restarted": True}

    async def _restart(self) -> None:
        """Begin anew; what runs is ended, and what waits runs in the new interpreter."""
        done = asyncio.get_running_loop().create_future()
        self._restarts.append(done)
        if self._now is not None:
            self._now.cancel()
        taking = asyncio.ensure_future(self._take_turn())  # whose turn is before may do it
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)
        await done

    async def _take_turn(self) -> None:
        async with self._turn:
            await self._renew()

    async def _renew(self) -> None:
        """Carry out the restarts that are asked for, all by one; only for who has the turn."""
        while self._restarts:
            asked, self._restarts = self._restarts, []
            failure: Exception | None = None
            try:
                await self._session.restart()
            except Exception as exc:  # whoever asked for it is told
                failure = exc
            for done in asked:
                if failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)


def _how(running: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
    if running.cancelled():
        return {"status": "stopped", "restarted": True}
    return running.result()


async def _whole(reader: asyncio.StreamReader) -> bytes:
    data = bytearray()
    while piece := await reader.read(1 << 16):
        data += piece
        if len(data) > REQUEST_BYTES:
            raise ValueError("the request is too long")
    return bytes(data)


def _session(language: str, folder: str) -> Any:
    if language == "python":
        import python_session

        return python_session.Session(folder)
    import bash_session

    return bash_session.Session(folder)


def _tell(**fields: Any) -> None:
    """Say how the start went."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def main(folder: str, language: str) -> int:
    """Serve until told to stop."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # what is ignored here would be so below
    os.mkdir(folder, 0o700)
    session = None
    try:
        session = _session(language, folder)
        await session.start()
    except Missing as exc:
        _tell(missing=str(exc)[:500])
        shutil.rmtree(folder, ignore_errors=True)
        return 4
    except Exception as exc:  # whatever keeps an interpreter from starting is told
        words = "" if session is None else session.last_words()
        _tell(failed=f"{type(exc).__name__}: {exc} {words}"[:2000])
        shutil.rmtree(folder, ignore_errors=True)
        return 5
    context = Context(session)
    server = await asyncio.start_unix_server(context.serve, f"{folder}/door", limit=1 << 20)
    _tell(ready=True)
    try:
        await context.over.wait()
    finally:
        server.close()
        await session.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2])))
