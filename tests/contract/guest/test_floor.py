"""The bare port for benchmarks, over a Unix socket."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.contract.guest.agent import SOURCES


def test_echo_sink_and_source(tmp_path: Path) -> None:
    path = tmp_path / "f"
    process = subprocess.Popen(
        [sys.executable, "-m", "torpor_guest.floor", "--socket", str(path)],
        env={"PYTHONPATH": str(SOURCES)},
    )
    try:
        deadline = time.monotonic() + 10
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(10)
            while link.connect_ex(str(path)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            file = link.makefile("rwb")
            for line in (b"hello\n", b"\n", b"SINK\n", b"SINK x\n"):
                file.write(line)
                file.flush()
                assert file.readline() == line
            file.write(b"SINK 1000000\n" + b"x" * 1_000_000 + b"after\n")
            file.flush()
            assert (file.readline(), file.readline()) == (b"DONE 1000000\n", b"after\n")
            file.write(b"SOURCE 1000000\nend\n")
            file.flush()
            assert len(file.read(1_000_000)) == 1_000_000
            assert file.readline() == b"end\n"
            file.close()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
