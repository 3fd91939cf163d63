"""A daemon that dies, or stops, at a named point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.vm.conftest import end_daemon
from torpor.base.home import Home


class FaultyDaemon:
    """The daemon of `home` with a fault; a context that ends it."""

    def __init__(self, home: Home, fault: str) -> None:
        end_daemon(home)
        read, write = os.pipe()
        with (home.root / "faulty.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "torpor.server",
                    "--home",
                    str(home.root),
                    "--ready-fd",
                    str(write),
                ],
                env={**os.environ, "TORPOR_FAULT": fault},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write,),
                start_new_session=True,
            )
        os.close(write)
        with os.fdopen(read) as ready:
            said = ready.read()
        assert said.strip() == "ready" or self.process.poll() is not None, said

    def __enter__(self) -> FaultyDaemon:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def died(self, *, within_s: float = 60) -> bool:
        """Return whether it died by its own hand in time."""
        try:
            return self.process.wait(within_s) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return False

    def until_stopped(self, *, within_s: float = 60) -> None:
        """Return when it has stopped itself."""
        end = time.monotonic() + within_s
        stat = Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < end, "it never came to the point"
            time.sleep(0.01)

    def go_on(self) -> None:
        """Let it run on."""
        self.process.send_signal(signal.SIGCONT)
