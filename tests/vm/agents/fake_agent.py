"""What the fake agents have in common: a turn, a gateway with a scheduler, sessions in SQLite, a planted memory.

Standard library only: it runs in the guest, as the code of each fake agent. What differs between them (paths,
configuration, names of commands) is in `hermes.py`, `agent_zero.py` and `openclaw.py`. Exit codes: 75 when the
provider is away, 1 for everything else that goes wrong.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import sqlite3
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOME = Path(pwd.getpwuid(os.getuid()).pw_dir)
"""Whatever the environment says: an update is also run by root for the agent."""
PROVIDER = "http://127.0.0.1:9999/v1/chat"
AWAY = 75


class ProviderAway(Exception):
    """The provider cannot be reached, or says that it is overloaded."""


class Agent:
    """One agent; a subclass says where its things are."""

    name = ""
    port = 0
    home: Path

    # ---- what a subclass says ----

    def tools(self) -> list[str]:
        """Return the names of the tools that the configuration enables."""
        raise NotImplementedError

    def model(self) -> str:
        """Return `provider/model`."""
        raise NotImplementedError

    def embedder(self) -> str:
        """Return the `provider/model` that memory is indexed with."""
        return "acme/embed-1"

    def database(self) -> Path:
        """Return the sessions' database."""
        raise NotImplementedError

    def jobs_file(self) -> tuple[Path, str]:
        """Return the file of scheduled jobs and the key of their list."""
        raise NotImplementedError

    def memory_index(self) -> Path:
        """Return the index of what it remembers."""
        raise NotImplementedError

    # ---- a turn ----

    def turn(self, prompt: str, session: str = "main") -> str:
        """Answer a prompt: the provider has to ask for a tool, the tool is called, the answer is kept."""
        messages = [{"role": "user", "content": prompt}]
        answer = self._ask(messages)
        if "call" in answer:
            if answer["call"] not in self.tools():
                raise SystemExit(f"no tool {answer['call']}")
            messages.append({"role": "tool", "content": time.strftime("%H:%M")})
            answer = self._ask(messages)
        self._keep(session, prompt, answer["text"])
        return answer["text"]

    def _ask(self, messages: list[dict[str, str]]) -> dict[str, str]:
        body = {"model": self.model(), "messages": messages, "tools": self.tools()}
        request = urllib.request.Request(PROVIDER, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                found: dict[str, str] = json.load(reply)
                return found
        except urllib.error.HTTPError as exc:
            if exc.code in (429, 500, 502, 503, 504):
                raise ProviderAway(str(exc)) from exc
            raise SystemExit(f"{self.name}: provider says {exc.code}") from exc
        except OSError as exc:
            raise ProviderAway(str(exc)) from exc

    def _keep(self, session: str, prompt: str, answer: str) -> None:
        with self.connect() as db:
            db.execute("INSERT OR IGNORE INTO sessions VALUES (?, 'test')", (session,))
            db.execute(
                "INSERT INTO messages (session, role, text) VALUES (?, 'user', ?)",
                (session, prompt),
            )
            db.execute(
                "INSERT INTO messages (session, role, text) VALUES (?, 'agent', ?)",
                (session, answer),
            )

    def resume(self, session: str, prompt: str) -> str:
        """Go on with a session that exists, with the model that it was begun with."""
        with self.connect() as db:
            if db.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone() is None:
                raise SystemExit(f"no session {session}")
        return self.turn(prompt, session)

    def recall(self, word: str) -> str:
        """Return what it remembers of a word, if the index was made with the present embedder."""
        index = json.loads(self.memory_index().read_text())
        if index["made_with"] != self.embedder():
            raise SystemExit(f"index of {index['made_with']} cannot be read with {self.embedder()}")
        return "\n".join(text for text in index["texts"] if word in text)

    def connect(self) -> sqlite3.Connection:
        """Open the sessions' database."""
        db = sqlite3.connect(self.database(), timeout=5)
        db.execute("PRAGMA journal_mode=WAL")
        return db

    # ---- the scheduler ----

    def fires(self, job: dict[str, object]) -> bool:
        """Tell whether a job that is due may run."""
        return bool(job.get("enabled", True))

    def tick(self) -> None:
        """Run the jobs that are due, once each."""
        path, key = self.jobs_file()
        for job in json.loads(path.read_text())[key]:
            if job.get("run_claim") and self.fires(job):
                with self.connect() as db:
                    db.execute("INSERT OR IGNORE INTO runs VALUES (?)", (job["run_claim"],))

    def canary(self) -> None:
        """Let the first job be due now, and see it run; nothing of what the job says is changed."""
        path, key = self.jobs_file()
        before = path.read_text()
        mark = f"canary-{time.time_ns()}"
        document = json.loads(before)
        document[key][0]["run_claim"] = mark
        write(path, json.dumps(document, indent=1))
        try:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                with self.connect() as db:
                    if db.execute("SELECT 1 FROM runs WHERE mark = ?", (mark,)).fetchone():
                        return
                time.sleep(0.1)
            raise SystemExit("the canary job did not run")
        finally:
            write(path, before)

    # ---- the gateway ----

    def serve(self) -> None:
        """Answer /health and /message, and run the scheduler, until ended."""
        agent = self
        self.claim_home()

        class Gateway(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(200, "ok")

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
                try:
                    self.answer(200, agent.on_message(text))
                except ProviderAway:
                    self.answer(503, "provider away")

            def answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self.holder = self.connect()  # as the real ones do, it keeps its database open
        self.holder.execute("SELECT count(*) FROM sessions").fetchone()
        server = ThreadingHTTPServer(("127.0.0.1", self.port), Gateway)
        ready()
        threading.Thread(target=self._schedule, daemon=True).start()
        server.serve_forever()

    def claim_home(self) -> None:
        """Return when no other gateway works in this home."""

    def _schedule(self) -> None:
        while True:
            try:
                self.tick()
            except (OSError, ValueError, KeyError, sqlite3.Error) as exc:
                print(f"ERROR scheduler: {exc}", flush=True)
            time.sleep(0.2)

    def on_message(self, text: str) -> str:
        """Answer a message that came in by a channel."""
        return self.turn(text, "channel")

    # ---- set-up and the command line ----

    def lay_out(self) -> None:
        """Write a used agent's files."""
        raise NotImplementedError

    def make_database(self) -> None:
        """Write a database with a few old sessions."""
        self.database().parent.mkdir(parents=True, exist_ok=True)
        with self.connect() as db:
            db.executescript(
                "CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT);"
                "CREATE TABLE messages (id INTEGER PRIMARY KEY, session TEXT, role TEXT, text TEXT);"
                "CREATE TABLE runs (mark TEXT PRIMARY KEY);"
            )
            for number in range(40):
                db.execute("INSERT INTO sessions VALUES (?, 'cli')", (f"s{number}",))
                for turn in range(20):
                    db.execute(
                        "INSERT INTO messages (session, role, text) VALUES (?, 'user', ?)",
                        (f"s{number}", f"message {turn} of session {number} " + "x" * 100),
                    )
        db.close()

    def command(self, argv: list[str]) -> None:
        """Run a command of the agent's command line."""
        raise NotImplementedError

    def run(self) -> None:
        """Run as a program."""
        try:
            self.common(sys.argv[1:])
        except ProviderAway as exc:
            print(f"provider unavailable: {exc}", file=sys.stderr)
            sys.exit(AWAY)

    def common(self, argv: list[str]) -> None:
        """Run a command that every fake agent has; else the agent's own."""
        match argv:
            case ["gateway", "run"]:
                self.serve()
            case ["chat", "-q", prompt]:
                print(self.turn(prompt))
            case ["chat", "--resume", session, "-q", prompt]:
                print(self.resume(session, prompt))
            case ["recall", word]:
                print(self.recall(word))
            case ["cron", "canary"]:
                self.canary()
            case ["setup"]:
                self.lay_out()
            case _:
                self.command(argv)


def ready() -> None:
    """Tell systemd that the gateway listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect(os.environ["NOTIFY_SOCKET"])
        notify.sendall(b"READY=1")


def write(path: Path, text: str) -> None:
    """Write a file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.rename(path)
