"""Having Redis write its memory to its file, over its own protocol."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import Any

from torpor_guest.keeping import KeeperFailed, left_s, plain

DEFAULT_ADDRESS = "127.0.0.1:6379"
_ASK_AGAIN_S = 0.05
_REPLY_BYTES = 1 << 20


class RedisKeeper:
    """One server. Nothing is held: what is written after the save is in the snapshot's RAM, and in an AOF."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._address = str(config.get("address") or DEFAULT_ADDRESS)
        self._password_file = config.get("password_file")
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._run_id = ""

    def prepare(self, deadline: float) -> str:
        """Have it save in the background, and wait for the end of that."""
        self._connect(deadline)
        self._run_id = self._info("server")["run_id"]
        self._begin_save(deadline)
        while True:
            info = self._info("persistence")
            if info.get("rdb_bgsave_in_progress") == "0":
                if info.get("rdb_last_bgsave_status") != "ok":
                    raise KeeperFailed("Redis could not save: rdb_last_bgsave_status is not ok")
                return f"saved at {self._ask('LASTSAVE')}"
            if time.monotonic() > deadline:
                raise KeeperFailed("Redis was still saving when its time was over")
            time.sleep(_ASK_AGAIN_S)

    def hold(self, deadline: float) -> str:
        """See that it is still the same server."""
        self._same(deadline)
        return (
            "saved; not held: writes after the save are in its memory, and in its AOF if it has one"
        )

    def confirm(self) -> str:
        """Raise if it was restarted."""
        self._same(time.monotonic() + 5)
        return ""

    def release(self) -> str:
        """Hang up."""
        if self._socket:
            self._socket.close()
            self._socket = None
        return ""

    def _begin_save(self, deadline: float) -> None:
        """Begin a save that holds all that is there now; one that is under way began too early."""
        while True:
            try:
                self._ask("BGSAVE")
            except KeeperFailed as exc:
                if "in progress" not in str(exc).lower() or time.monotonic() > deadline:
                    raise
                time.sleep(_ASK_AGAIN_S)
            else:
                return

    def _same(self, deadline: float) -> None:
        if self._socket:
            self._socket.settimeout(left_s(deadline))
        if self._info("server")["run_id"] != self._run_id:
            raise KeeperFailed("Redis was restarted meanwhile")

    def _info(self, section: str) -> dict[str, str]:
        lines = self._ask("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _connect(self, deadline: float) -> None:
        is_path = self._address.startswith("/")
        found = socket.socket(socket.AF_UNIX if is_path else socket.AF_INET)
        try:
            found.settimeout(left_s(deadline))
            if is_path:
                found.connect(self._address)
            else:
                host, _, port = self._address.rpartition(":")
                found.connect((host or "127.0.0.1", int(port)))
        except (OSError, ValueError) as exc:
            found.close()
            raise KeeperFailed(f"Redis at {self._address} does not answer: {exc}") from exc
        self._socket = found
        if self._password_file:
            try:
                password = Path(str(self._password_file)).read_text().strip()
            except OSError as exc:
                raise KeeperFailed(f"{self._password_file}: {exc.strerror}") from exc
            self._ask("AUTH", password)

    def _ask(self, *words: str) -> str:
        """Send a command; return its answer as text."""
        if self._socket is None:
            raise KeeperFailed("Redis is not connected")
        parts = [f"*{len(words)}\r\n".encode()]
        for word in words:
            data = word.encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
        try:
            self._socket.sendall(b"".join(parts))
            return self._reply(words[0])
        except OSError as exc:
            raise KeeperFailed(f"Redis at {self._address} does not answer: {exc}") from exc

    def _reply(self, command: str) -> str:
        line = self._until(b"\r\n").decode("utf-8", "replace")
        kind, rest = line[:1], line[1:]
        if kind == "-":
            raise KeeperFailed(f"Redis refuses {command}: {plain(rest, 200)}")
        if kind != "$":
            return rest
        size = 0
        with contextlib.suppress(ValueError):
            size = int(rest)
        if not 0 <= size <= _REPLY_BYTES:
            raise KeeperFailed(f"Redis answers {command} with {plain(rest, 40)} bytes")
        while len(self._buffer) < size + 2:
            self._more()
        data, self._buffer = self._buffer[:size], self._buffer[size + 2 :]
        return data.decode("utf-8", "replace")

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            self._more()
        data, _, self._buffer = self._buffer.partition(end)
        return data

    def _more(self) -> None:
        assert self._socket
        data = self._socket.recv(1 << 16)
        if not data or len(self._buffer) > _REPLY_BYTES:
            raise KeeperFailed(f"Redis at {self._address} hung up")
        self._buffer += data
