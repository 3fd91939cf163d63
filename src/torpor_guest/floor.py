"""The bare port, for benchmarks: what the channel itself can do, without an agent on it.

`python3 -m torpor_guest.floor` echoes each line. `SINK n` reads n bytes and answers a line; `SOURCE n` sends n
bytes. It blocks on one descriptor and does nothing else. The agent must not run: a port is opened once.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import time
from pathlib import Path

from torpor_guest.device import find_port

_PIECE = 64 << 10
_AWAY_S = 0.05


class Floor:
    """The port or socket, read and written as it comes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""

    def serve(self) -> None:
        """Answer lines for ever; on a socket until it is closed."""
        while True:
            while b"\n" not in self._buffer:
                self._buffer += self._read()
            line, _, self._buffer = self._buffer.partition(b"\n")
            word, _, number = line.partition(b" ")
            if word == b"SINK" and number.isdigit():
                self._sink(int(number))
            elif word == b"SOURCE" and number.isdigit():
                self._source(int(number))
            else:
                self._write(line + b"\n")

    def _sink(self, size: int) -> None:
        left = size - len(self._buffer)
        self._buffer = b""
        while left > 0:
            data = self._read()
            self._buffer = data[left:] if len(data) > left else b""
            left -= len(data)
        self._write(b"DONE %d\n" % size)

    def _source(self, size: int) -> None:
        block = bytes(_PIECE)
        while size > 0:
            self._write(block[: min(size, _PIECE)])
            size -= _PIECE

    def _read(self) -> bytes:
        while True:
            try:
                data = os.read(self._fd, _PIECE)
            except BlockingIOError:
                select.select([self._fd], [], [])
                continue
            if data:
                return data
            if not _is_port(self._fd):
                raise SystemExit(0)
            time.sleep(_AWAY_S)  # the host end is closed; poll would say so at once, for ever

    def _write(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            try:
                start += os.write(self._fd, data[start:] if start else data)
            except BlockingIOError:
                select.select([], [self._fd], [], 1.0)


def _is_port(fd: int) -> bool:
    return not os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).startswith("socket:")


def main() -> None:
    """Serve the port, or with `--socket` the first connection to a Unix socket."""
    parser = argparse.ArgumentParser(prog="torpor_guest.floor", description="Echo on the bare port")
    parser.add_argument("--socket", type=Path, help="serve this Unix socket, not the port")
    args = parser.parse_args()
    if args.socket:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(args.socket))
            listener.listen(1)
            fd = listener.accept()[0].detach()
    else:
        path = find_port()
        if path is None:
            sys.exit("there is no port called torpor.agent0")
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    os.set_blocking(fd, True)
    Floor(fd).serve()


if __name__ == "__main__":
    main()
