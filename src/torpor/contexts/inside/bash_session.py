"""A bash that keeps its variables, functions and folder from one piece of code to the next."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import secrets
import shutil
import signal
from typing import Any

import torpor_generation as generation
from outlet import Outlet
from python_session import Missing

_CHUNK = 64 << 10
_PIECES_MOST = 64
"""Read at one go: a process in the background may go on writing for ever."""


class Session:
    """One bash, and another one when it has ended."""

    def __init__(self, folder: str) -> None:
        if shutil.which("bash") is None:
            raise Missing("there is no bash on the PATH")
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._fds: dict[str, int] = {}
        self._seen: tuple[int, int] | None = None
        self._status = -1
        """The descriptor in bash at which it says how code ended."""

    async def start(self) -> None:
        """Start a bash. A trap ends the code that runs, and not the bash, when it is interrupted."""
        pipes = {name: os.pipe() for name in ("stdout", "stderr", "status")}
        status = pipes["status"][1]
        try:
            self._process = await asyncio.create_subprocess_exec(
                "bash", "--noprofile", "--norc", "-s",
                stdin=asyncio.subprocess.PIPE,
                stdout=pipes["stdout"][1],
                stderr=pipes["stderr"][1],
                pass_fds=(status,),
                start_new_session=True,
            )  # fmt: skip
        finally:
            for _, theirs in pipes.values():
                os.close(theirs)
        self._fds = {name: ours for name, (ours, _) in pipes.items()}
        for fd in self._fds.values():
            os.set_blocking(fd, False)
        self._status = status
        self._seen, _ = generation.read()
        await self._feed("trap 'return 130' INT\n")

    async def _feed(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has ended, which is seen elsewhere
            self._process.stdin.write(text.encode("utf-8", "surrogateescape"))
            await self._process.stdin.drain()

    async def run(self, code: str, out: Outlet) -> dict[str, Any]:
        """Run code; return the end's fields. Cancelling this leaves the code running."""
        fields: dict[str, Any] = {}
        if self._process is None or self._process.returncode is not None:
            await self.restart()
            fields["restarted"] = True
        assert self._process is not None
        file, nonce = f"{self._folder}/code", secrets.token_hex(8)
        with open(file, "w", encoding="utf-8", errors="surrogateescape") as target:
            target.write(code)
        for name in ("stdout", "stderr"):
            self._drop(name)  # of processes in the background: it belongs to no run
        with _Reading(self._fds, out) as reading:
            say = f"printf '%s %s\\n' {nonce} $? >&{self._status}"
            await self._feed(f"{self._redraw()}. {file} </dev/null; {say}\n")
            exit_code, has_ended = await self._end(reading, nonce)
            reading.drain()
        if has_ended:
            await self.restart()
            fields["restarted"] = True
        return {"status": "error" if exit_code else "ok", "exit_code": exit_code, **fields}

    async def _end(self, reading: _Reading, nonce: str) -> tuple[int, bool]:
        """Return the exit code, and whether bash itself has ended, with it."""
        assert self._process is not None
        status = asyncio.ensure_future(reading.status(nonce))
        ended = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait((status, ended), return_when=asyncio.FIRST_COMPLETED)
            if status.done():
                return status.result(), False
            code = ended.result()
            return (code if code >= 0 else 128 - code), True
        finally:
            status.cancel()
            ended.cancel()

    def _drop(self, name: str) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_PIECES_MOST):
                if not os.read(self._fds[name], _CHUNK):
                    return

    def _redraw(self) -> str:
        """Return what gives `$RANDOM` new state when the machine went on from a snapshot."""
        seen, said = generation.read()
        if seen == self._seen:
            return ""
        self._seen = seen
        if not generation.wants_new_randomness(said):
            return ""
        return f"RANDOM={int.from_bytes(os.urandom(4), 'little') >> 1}\n"

    async def interrupt(self) -> None:
        """Interrupt what runs, as Ctrl-C would."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGINT)

    async def restart(self) -> None:
        """End the bash and start another."""
        await self.close()
        await self.start()

    async def close(self) -> None:
        """End the bash and what runs in it."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def last_words(self) -> str:
        """Return nothing: a bash that runs nothing has nothing to say."""
        return ""


class _Reading:
    """Hands on what comes from the pipes while it is entered."""

    def __init__(self, fds: dict[str, int], out: Outlet) -> None:
        self._fds = fds
        self._out = out
        self._status = b""
        self._news = asyncio.Event()
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("replace") for name in ("stdout", "stderr")}

    def __enter__(self) -> _Reading:
        loop = asyncio.get_running_loop()
        for name, fd in self._fds.items():
            loop.add_reader(fd, self._on_readable, name)
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds.values():
            asyncio.get_running_loop().remove_reader(fd)

    def _on_readable(self, name: str) -> bool:
        """Read one piece; return whether there was one."""
        try:
            data = os.read(self._fds[name], _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(self._fds[name])
            return False
        if name == "status":
            self._status = (self._status + data)[-4096:]
            self._news.set()
        else:
            self._out.stream(name, self._decoders[name].decode(data))
        return True

    async def status(self, nonce: str) -> int:
        """Return the exit code, when the line with `nonce` has come."""
        while True:
            for line in self._status.split(b"\n")[:-1]:
                words = line.split()
                if len(words) == 2 and words[0] == nonce.encode() and words[1].isdigit():
                    return int(words[1])
            self._news.clear()
            await self._news.wait()

    def drain(self) -> None:
        """Read what was written before the end; what others go on writing has a limit."""
        for name in ("stdout", "stderr"):
            for _ in range(_PIECES_MOST):
                if not self._on_readable(name):
                    break
            self._out.stream(name, self._decoders[name].decode(b"", final=True))
