"""Commands of the fake guest: a small language run by a task, with spooled output and signals."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import shlex
from collections import Counter
from datetime import UTC, datetime

from tests.fakes.engine_files import FakeFiles
from torpor.model import ExecId, ExecInfo, ExecSpec, ExecState, ProcessInfo

_pids = itertools.count(100)
_running: set[asyncio.Task[None]] = set()
"""The commands that run, also those of machines that nobody knows any more."""


class _Exit(Exception):
    """Ends the script with a code."""


async def end_all() -> None:
    """End every command of this loop, and wait until they have ended."""
    mine = [task for task in _running if task.get_loop() is asyncio.get_running_loop()]
    for task in mine:
        task.cancel()
    await asyncio.gather(*mine, return_exceptions=True)


class FakeExec:
    """One command."""

    def __init__(
        self,
        exec_id: ExecId,
        spec: ExecSpec,
        *,
        env: dict[str, str],
        marks: Counter[str],
        files: FakeFiles,
        packages: dict[str, str] | None,
        answers: dict[str, bytes],
    ) -> None:
        self.exec_id = exec_id
        self.spec = spec
        self.env = {**env, **spec.env}
        self.pid = next(_pids)
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.state: ExecState = "running"
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.timed_out = False
        self.changed = asyncio.Event()
        self._marks = marks
        self._files = files
        self._packages = packages
        self._answers = answers
        self._stdin: asyncio.Queue[bytes] = asyncio.Queue()
        self.window: tuple[int, int] | None = None
        """What its terminal was last said to be."""
        if not spec.stdin and spec.terminal is None:
            self._stdin.put_nowait(b"")
        self._began = datetime.now(UTC)
        self._duration_ms: int | None = None
        self._task = asyncio.create_task(self._run())
        _running.add(self._task)
        self._task.add_done_callback(_running.discard)

    def info(self) -> ExecInfo:
        return ExecInfo(
            exec_id=self.exec_id,
            command=self.spec.command,
            state=self.state,
            pid=self.pid,
            user=self.spec.user or "agent",
            cwd=self.spec.cwd or "/workspace",
            background=self.spec.background,
            terminal=self.spec.terminal is not None,
            started_at=self._began,
            exit_code=self.exit_code,
            signal=self.signal,
            timed_out=self.timed_out,
            duration_ms=self._duration_ms,
            stdout_bytes=len(self.stdout),
            stderr_bytes=len(self.stderr),
            stdout_path=f"/var/lib/torpor/execs/{self.exec_id}/stdout",
            stderr_path=f"/var/lib/torpor/execs/{self.exec_id}/stderr",
        )

    def process(self) -> ProcessInfo:
        return ProcessInfo(
            pid=self.pid,
            ppid=1,
            user=self.spec.user or "agent",
            state="S",
            rss_bytes=4 << 20,
            command=str(self.spec.command),
            exec_id=self.exec_id,
        )

    def feed(self, data: bytes, *, eof: bool) -> None:
        if data:
            self._stdin.put_nowait(data)
        if eof:
            self._stdin.put_nowait(b"")

    def kill(self, signal: int) -> None:
        if self.state == "running":
            self.signal = signal
            self._end(128 + signal)
            self._task.cancel()

    def _end(self, code: int) -> None:
        self.exit_code = code
        self.state = "exited"
        self._duration_ms = int((datetime.now(UTC) - self._began).total_seconds() * 1000)
        self._wake()

    def nudge(self) -> None:
        """Let those who follow look again."""
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self.spec.timeout_seconds):
                self._end(await self._script())
        except _Exit as end:
            self._end(int(end.args[0]))
        except TimeoutError:
            self.timed_out = True
            self.kill(9)

    async def _script(self) -> int:
        if self.spec.terminal is not None and not self.spec.command:
            return await self._program(["cat"])  # in place of a login shell
        if isinstance(self.spec.command, tuple):
            return await self._program(list(self.spec.command))
        code = 0
        for part in self.spec.command.replace("&&", ";").split(";"):
            code = await self._program(shlex.split(part))
        return code

    async def _program(self, argv: list[str]) -> int:  # noqa: C901 - one case a program
        answer = next((v for k, v in self._answers.items() if k in " ".join(argv)), None)
        if answer is not None:
            self._out(answer)
            return 0
        match argv:
            case []:
                return 0
            case ["echo", *words]:
                self._out(" ".join(words).encode("utf-8", "surrogateescape") + b"\n")
            case ["err", *words]:
                self.stderr += " ".join(words).encode() + b"\n"
                self._wake()
            case ["hex", digits]:
                self._out(bytes.fromhex(digits))
            case ["sleep", seconds]:
                await asyncio.sleep(float(seconds))
            case ["exit", code]:
                raise _Exit(code)
            case ["spew", count]:
                for begin in range(0, int(count), 65536):
                    self._out(b"x" * min(65536, int(count) - begin))
                    await asyncio.sleep(0)
            case ["cat"]:
                while data := await self._stdin.get():
                    self._out(data)
            case ["xargs", "-0", "sha256sum", "-z", "--"]:
                await self._hash_files()
            case ["dpkg-query", *_] if self._packages is not None:
                for name, version in self._packages.items():
                    self._out(f"{name}\t{version}\tinstalled\n".encode())
                self._out(b"gone\t1\tconfig-files\n")
            case ["python3", "-I", program, folder, language] if program.endswith("/serve.py"):
                await self._serve_code(folder, language)
            case ["python3", "-I", "-S", program, folder] if program.endswith("/ask.py"):
                await self._answer_code(folder)
            case ["mark", name]:
                self._marks[name] += 1
            case ["lost"]:
                self.state = "lost"
                self._wake()
                await asyncio.sleep(3600)
            case _:
                return self._say(argv)
        return 0

    async def _serve_code(self, folder: str, language: str) -> None:
        """Be the program behind a code context: ready, until it is ended."""
        if language == "python" and self._packages is None:
            self._out(b'{"missing": "No module named ipykernel"}\n')
            raise _Exit(4)
        self._files.mkdir(folder, parents=True, mode=0o700)
        self._out(b'{"ready": true}\n')
        while folder in self._files.nodes:
            await asyncio.sleep(0.01)

    async def _answer_code(self, folder: str) -> None:
        """Answer one request to it; code is commands of ours, `raise NAME`, `show MIME TEXT` or `limit`."""
        asked = b""
        while data := await self._stdin.get():
            asked += data
        request = json.loads(asked)
        if folder not in self._files.nodes:
            self.stderr += b"the context does not answer\n"
            raise _Exit(3)
        if request["op"] == "stop":
            del self._files.nodes[folder]
        done = {"kind": "done", "status": "ok", "execution_count": 1, "was_busy": False}
        if request["op"] == "run":
            self._say_code({"kind": "started"})
            for line in request["code"].splitlines():
                done |= await self._code_line(line.split(" "))
        self._say_code(done)

    async def _code_line(self, words: list[str]) -> dict[str, object]:
        match words:
            case ["raise", name]:
                said = {"name": name, "value": "why", "traceback": f"Traceback\n{name}: why"}
                self._say_code({"kind": "error", **said})
                return {"status": "error"}
            case ["show", mime, *text]:
                data = {mime: " ".join(text), "text/plain": "shown"}
                self._say_code({"kind": "result", "data": data, "main": True})
            case ["limit"]:
                return {"status": "timeout", "restarted": True}
            case ["nonsense"]:
                self._out(b"[1]\n")
            case ["sleep", seconds]:
                await asyncio.sleep(float(seconds))
            case _:
                self._say_code({"kind": "stdout", "text": " ".join(words) + "\n"})
        return {}

    def _say_code(self, said: dict[str, object]) -> None:
        self._out(json.dumps(said).encode() + b"\n")

    async def _hash_files(self) -> None:
        names = b""
        while data := await self._stdin.get():
            names += data
        for name in names.decode("utf-8", "surrogateescape").split("\0"):
            node = self._files.nodes.get(name)
            if node is None or node.mode == 0:
                self.stderr += b"sha256sum: cannot read it\n"
                continue
            digest = hashlib.sha256(node.data).hexdigest()
            self._out(f"{digest}  {name}\0".encode("utf-8", "surrogateescape"))

    def _say(self, argv: list[str]) -> int:
        said = {
            "true": "",
            "pwd": f"{self.spec.cwd or '/workspace'}\n",
            "whoami": f"{self.spec.user or 'agent'}\n",
            "uname": "Linux fake 6.12.0\n",
            "python3": "Python 3.13.0\n",
            "env": "".join(f"{key}={value}\n" for key, value in sorted(self.env.items())),
        }
        if argv[0] in said:
            self._out(said[argv[0]].encode())
            return 0
        if argv[0] == "false":
            return 1
        self.stderr += f"sh: {argv[0]}: not found\n".encode()
        return 127

    def _out(self, data: bytes) -> None:
        self.stdout += data
        self._wake()
