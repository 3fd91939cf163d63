"""Running the machine's own programs to their end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.launcher import Launcher, Program
from torpor_guest.users import BASE_PATH

_MAX_OUTPUT = 64 << 10


class Programs:
    """Starts programs as the agent's own user."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    async def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run a program; return its exit status (minus the signal that ended it) and what it wrote.

        Raises:
            AgentError: it could not be started, or ran too long and was killed with all it had started.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int | None] = loop.create_future()
        read, write = os.pipe()
        os.set_blocking(read, False)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        output = _Output(read)

        def on_exit(status: int | None) -> None:
            if not ended.done():
                ended.set_result(status)

        try:
            try:
                child = await self._launcher.launch(
                    _program(argv, env or {}), (null, write, write), on_exit
                )
            finally:
                os.close(null)
                os.close(write)
            loop.add_reader(read, output.take)
            try:
                await asyncio.wait([ended], timeout=timeout_s)
            finally:
                if not ended.done():
                    self._launcher.kill(child)
                self._launcher.release(child.cgroup)
            if not ended.done():
                raise AgentError(
                    errors.TIMEOUT, f"{' '.join(argv)} ran longer than {timeout_s:g} s"
                )
            status = ended.result()
            if status is None:
                raise AgentError(errors.FAILED, f"the end of {' '.join(argv)} is not known")
            output.take()
            return os.waitstatus_to_exitcode(status), output.text
        finally:
            loop.remove_reader(read)
            os.close(read)


def _program(argv: Sequence[str], env: Mapping[str, str]) -> Program:
    path = os.environ.get("PATH") or BASE_PATH
    names = (
        [argv[0]]
        if "/" in argv[0]
        else [f"{folder}/{argv[0]}" for folder in path.split(":") if folder]
    )
    full = {"PATH": path, "LANG": "C.UTF-8", **env}
    return Program(
        argv=[os.fsencode(part) for part in argv],
        programs=[os.fsencode(name) for name in names],
        env={os.fsencode(key): os.fsencode(value) for key, value in full.items()},
    )


class _Output:
    """What a program wrote, up to a limit."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()

    def take(self) -> None:
        """Read what is there."""
        try:
            while data := os.read(self._fd, _MAX_OUTPUT):
                self._data += data[: _MAX_OUTPUT - len(self._data)]
        except BlockingIOError:
            return
        asyncio.get_running_loop().remove_reader(self._fd)

    @property
    def text(self) -> str:
        """It, as text."""
        return self._data.decode("utf-8", "replace")
