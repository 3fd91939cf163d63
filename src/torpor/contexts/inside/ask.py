"""Hands one request from stdin to the program behind a context, and its answers to stdout.

Started for every request, so it imports next to nothing.
"""

import os
import socket
import sys


def main() -> int:
    """Relay; 3 when nobody is behind the door."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.connect(os.path.join(sys.argv[1], "door"))
    except OSError as exc:
        sys.stderr.write(f"the context does not answer: {exc.strerror}\n")
        return 3
    try:
        while piece := os.read(0, 1 << 16):
            door.sendall(piece)
        door.shutdown(socket.SHUT_WR)
        while piece := door.recv(1 << 16):
            while piece:
                piece = piece[os.write(1, piece) :]
    except OSError as exc:
        sys.stderr.write(f"the context is gone: {exc.strerror}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
