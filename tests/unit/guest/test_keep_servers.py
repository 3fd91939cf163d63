"""PostgreSQL and Redis before a snapshot: real servers where they are installed, and a Redis on paper."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.guest.holding import helper


def _server_program(name: str) -> Path | None:
    found = shutil.which(name)
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return Path(found).resolve() if found else places[-1] if places else None


class Postgres:
    """A server of the tests' own, on a socket."""

    def __init__(self, folder: Path, control: Path) -> None:
        self.folder = folder
        self._control = control

    def run(self, *argv: str) -> str:
        """Run a program as the server's user."""
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [*user, *argv], check=True, capture_output=True, cwd="/", stdin=subprocess.DEVNULL
        )
        return done.stdout.decode()

    def control(self, *words: str) -> None:
        """Start or stop it."""
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off"
        log, data = str(self.folder / "log"), str(self.folder / "data")
        self.run(str(self._control), "-D", data, "-w", "-l", log, "-o", options, *words)

    def sql(self, text: str) -> str:
        """Ask it."""
        return self.run(
            "psql", "-XAtq", "-h", str(self.folder), "-U", "postgres", "-c", text
        ).strip()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    control, initdb = _server_program("pg_ctl"), _server_program("initdb")
    if control is None or initdb is None or shutil.which("psql") is None:
        pytest.skip("PostgreSQL's programs are not installed")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    server = Postgres(folder, control)
    try:
        server.run(str(initdb), "-D", str(folder / "data"), "-A", "trust", "-U", "postgres")
        server.control("start")
        try:
            yield server
        finally:
            server.control("-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def test_a_checkpoint(postgres: Postgres) -> None:
    redo = "SELECT redo_lsn FROM pg_control_checkpoint()"
    postgres.sql("CREATE TABLE t AS SELECT generate_series(1, 1000)")
    before = postgres.sql(redo)
    with helper(kind="postgres", address=str(postgres.folder)) as held:
        held.quiet()
        assert postgres.sql(redo) != before
        assert postgres.sql("INSERT INTO t VALUES (1) RETURNING 1") == "1", "nothing is held"
        assert held.ask("confirm")["ok"]
        postgres.control("-m", "fast", "restart")
        assert held.ask("confirm") == {
            "ok": False,
            "message": "PostgreSQL was restarted meanwhile",
        }
        assert held.ask("release")["ok"]


def test_no_server_and_no_such_role(postgres: Postgres, tmp_path: Path) -> None:
    with helper(kind="postgres", address=str(tmp_path)) as held:
        assert "refuses CHECKPOINT" in held.ask("prepare", 5)["message"]
    with helper(kind="postgres", address=str(postgres.folder), user="nobody-there") as held:
        message = held.ask("prepare", 5)["message"]
        assert "nobody-there" in message
        assert message.isprintable()


def test_a_checkpoint_that_takes_too_long(postgres: Postgres) -> None:
    with helper(kind="postgres", address=str(postgres.folder)) as held:
        assert "took too long" in held.ask("prepare", 0)["message"]


class PaperRedis:
    """Speaks as much of Redis' protocol as is asked; what it answers is the test's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[list[str]] = []
        self.busy = 2
        """So many times it says that a save is under way."""
        self.status = "ok"
        self.run_id = "a" * 40
        self.password = ""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(4)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                while count := lines.readline():
                    words = []
                    for _ in range(int(count[1:])):
                        size = int(lines.readline()[1:])
                        words.append(lines.read(size + 2)[:-2].decode())
                    self.asked.append(words)
                    connection.sendall(self._answer(words))

    def _answer(self, words: list[str]) -> bytes:
        if self.password and words[0] != "AUTH":
            return b"-NOAUTH Authentication required.\r\n"
        if words[0] == "AUTH":
            is_right = words[1] == self.password
            self.password = "" if is_right else self.password
            return b"+OK\r\n" if is_right else b"-WRONGPASS invalid\r\n"
        if words[0] == "BGSAVE":
            if self.busy > 1:
                self.busy -= 1
                return b"-ERR Background save already in progress\r\n"
            return b"+Background saving started\r\n"
        if words[0] == "LASTSAVE":
            return b":1700000000\r\n"
        body = f"# Server\r\nrun_id:{self.run_id}\r\n"
        if words[1] == "persistence":
            body = f"rdb_bgsave_in_progress:{min(self.busy, 1)}\r\nrdb_last_bgsave_status:{self.status}\r\n"
            self.busy = max(0, self.busy - 1)
        return b"$%d\r\n%s\r\n" % (len(body), body.encode())


@pytest.fixture
def paper(tmp_path: Path) -> Iterator[PaperRedis]:
    found = PaperRedis(tmp_path / "redis.sock")
    yield found
    found.close()


def test_a_save_is_waited_for(paper: PaperRedis) -> None:
    with helper(kind="redis", address=str(paper.path)) as held:
        answer = held.ask("prepare", 10)
        assert answer == {"ok": True, "message": "saved at 1700000000"}
        assert paper.asked.count(["BGSAVE"]) == 2, "the one under way began too early"
        assert held.ask("hold", 10, 30)["ok"]
        assert held.ask("confirm")["ok"]
        paper.run_id = "b" * 40
        assert held.ask("confirm")["message"] == "Redis was restarted meanwhile"
        assert held.ask("release")["ok"]


def test_a_save_that_fails_or_never_ends(paper: PaperRedis) -> None:
    paper.status = "err"
    with helper(kind="redis", address=str(paper.path)) as held:
        assert "could not save" in held.ask("prepare", 10)["message"]
    paper.status, paper.busy = "ok", 10**6
    with helper(kind="redis", address=str(paper.path)) as held:
        begun = time.monotonic()
        assert not held.ask("prepare", 0.5)["ok"]
        assert time.monotonic() - begun < 5


def test_passwords(paper: PaperRedis, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("pass word\n")
    paper.password = "pass word"
    with helper(kind="redis", address=str(paper.path)) as held:
        assert "NOAUTH" in held.ask("prepare", 5)["message"]
    with helper(kind="redis", address=str(paper.path), password_file=str(secret)) as held:
        answer = held.ask("prepare", 10)
        assert answer["ok"]
        assert "pass word" not in str(answer)


@pytest.mark.parametrize(
    "nonsense", [b"", b"$-1\r\n", b"$99999999999\r\n", b"+no such thing\r\n", b"\xff\r\n"]
)
def test_a_server_that_makes_no_sense(
    paper: PaperRedis, nonsense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: Callable[[list[str]], bytes] = lambda words: nonsense or b"$3\r\nab"  # noqa: E731
    monkeypatch.setattr(paper, "_answer", answer)
    with helper(kind="redis", address=str(paper.path)) as held:
        found = held.ask("prepare", 1)
        assert not found["ok"]
        assert found["message"].isprintable()


def test_no_server(tmp_path: Path) -> None:
    for address in (str(tmp_path / "none"), "127.0.0.1:1", "nonsense"):
        with helper(kind="redis", address=address) as held:
            assert "does not answer" in held.ask("prepare", 5)["message"]


def test_a_real_redis(tmp_path: Path) -> None:
    program = os.environ.get("TORPOR_TEST_REDIS") or shutil.which("redis-server")
    if program is None:
        pytest.skip("Redis is not installed")
    path = tmp_path / "redis.sock"
    server = subprocess.Popen(
        [program, "--port", "0", "--unixsocket", str(path), "--dir", str(tmp_path), "--save", ""],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"SET key value-of-it\r\n")
            assert client.recv(100) == b"+OK\r\n"
        with helper(kind="redis", address=str(path)) as held:
            held.quiet()
            assert b"value-of-it" in (tmp_path / "dump.rdb").read_bytes()
            assert held.ask("confirm")["ok"]
    finally:
        server.terminate()
        server.wait(10)
