"""A daemon that dies, or stops, at a named point."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from tests.machines import FAULT_FILE
from tests.vm.conftest import daemon_process
from torpor import Sandbox
from torpor.base.fsio import write_atomic
from torpor.base.home import Home


class FaultyDaemon:
    """The daemon of `home`, which from now on has a fault; a context that ends it."""

    def __init__(self, home: Home, fault: str) -> None:
        next(iter(Sandbox.list()), None)  # one is started, unless it runs
        found = daemon_process(home)
        assert found is not None
        self._process = found
        self._file = Path(os.environ[FAULT_FILE])
        write_atomic(self._file, fault.encode())

    def __enter__(self) -> FaultyDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.unlink(missing_ok=True)
        asyncio.run(self._process.kill(within_s=30))

    def died(self, *, within_s: float = 60) -> bool:
        """Return whether it died by its own hand in time."""

        async def end() -> bool:
            try:
                async with asyncio.timeout(within_s):
                    await self._process.wait()
            except TimeoutError:
                return False
            return not self._file.exists()

        return asyncio.run(end())

    def until_stopped(self, *, within_s: float = 60) -> None:
        """Return when it has stopped itself."""
        end = time.monotonic() + within_s
        stat = Path(f"/proc/{self._process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < end, "it never came to the point"
            time.sleep(0.01)

    def go_on(self) -> None:
        """Let it run on."""
        os.kill(self._process.pid, signal.SIGCONT)
