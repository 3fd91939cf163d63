"""The engine on a real system, which is this host: testinfra's modules and the scripts that run inside."""

from __future__ import annotations

import asyncio
import hashlib
import http.server
import os
import shutil
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tests.fakes.probe import LocalProbe, TableProbe, ran
from torpor.errors import GuestUnreachable
from torpor.model_checks import CheckReport, CheckResult
from torpor.recovery.checks import parse_checks, run_checks
from torpor.recovery.checks.probe import Ran


def run(text: str, probe: Any = None) -> CheckReport:
    plan = parse_checks(f"folders: false\n{text}", source="t")
    return asyncio.run(run_checks(plan, probe or LocalProbe()))


def look(text: str, probe: Any = None) -> CheckResult:
    (result,) = run(f"required: {{{text}}}", probe).results
    return result


def test_a_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a file's name"
    path.write_text("model: small\nkey: é\n")
    path.chmod(0o640)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    result = look(
        f"""file: {{"{path}": {{mode: "0640", size: {path.stat().st_size}, filetype: file, sha256: {digest},
        owner: {path.owner()}, group: {path.group()}, contents: [model, "!large", "/^key: é$/"]}}}}"""
    )
    assert result.outcome == "pass", result
    assert len(result.findings) == 8


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("mode: '0600'", "mode: found 0640; wanted 0600"),
        ("contents: [large]", "contents: found model: small; wanted a line with large"),
        ("filetype: directory", "filetype: found file; wanted directory"),
        ("size: {gt: 1000}", "size: found 13; wanted gt 1000.0"),
        ("exists: false", "exists: found true; wanted false"),
        (f"sha256: {'0' * 64}", "sha256: found"),
        ("linked-to: /etc/passwd", "linked-to: found"),
    ],
)
def test_damage_to_a_file(tmp_path: Path, wanted: str, said: str) -> None:
    path = tmp_path / "x"
    path.write_text("model: small\n")
    path.chmod(0o640)
    result = look(f"file: {{{path}: {{{wanted}}}}}")
    assert result.outcome == "fail"
    assert result.reason.startswith(said), result.reason


def test_files_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/nowhere")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        report = run(
            f"""required: {{file: {{{tmp_path}: {{filetype: directory}}, {tmp_path}/link: {{filetype: symlink}},
            {tmp_path}/pipe: {{filetype: pipe}}, {tmp_path}/s: {{filetype: socket}},
            /dev/null: {{filetype: character-device}}, {tmp_path}/no: {{exists: false}}}}}}"""
        )
    assert report.verdict == "pass", report


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    result = look(f"file: {{{tmp_path}/x: {{mode: '0644'}}}}")
    assert result.outcome == "fail"
    assert [finding.found for finding in result.findings] == ["false", "there is no such file"]


def test_a_file_that_is_too_large_to_compare(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"first\n" + b"-" * (5 << 20) + b"\nlast\n")
    assert look(f"file: {{{tmp_path}/x: {{contents: [first]}}}}").outcome == "pass"
    assert look(f"file: {{{tmp_path}/x: {{contents: [last]}}}}").outcome == "inconclusive"


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert look(f"port: {{tcp:{port}: {{ip: [127.0.0.1]}}}}").outcome == "pass"
        assert look(f"port: {{tcp:{port}: {{ip: [0.0.0.0]}}}}").outcome == "fail"
        assert look(f"port: {{tcp6:{port}: }}").outcome == "fail"
        assert look(f"port: {{web: {{port: tcp:{port}}}}}").outcome == "pass"
    result = look(f"port: {{tcp:{port}: }}")
    assert (result.outcome, result.reason) == ("fail", "listening: found false; wanted true")
    assert look(f"port: {{tcp:{port}: {{listening: false}}}}").outcome == "pass"


def test_processes(tmp_path: Path) -> None:
    program = tmp_path / "my-agent-with-a-long-name"
    shutil.copy("/bin/sleep", program)

    async def both() -> None:
        process = await asyncio.create_subprocess_exec(program, "60")
        try:
            plan = parse_checks(
                f"folders: false\nrequired: {{process: {{{program.name}: {{count: 1}}}}}}",
                source="t",
            )
            assert (await run_checks(plan, LocalProbe())).verdict == "pass"
        finally:
            process.kill()
            await process.wait()
        assert (await run_checks(plan, LocalProbe())).verdict == "fail"

    asyncio.run(both())


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="this host has no dpkg")
def test_packages() -> None:
    assert look("package: {base-files: {versions: [{match-regexp: '^[0-9]'}]}}").outcome == "pass"
    assert look("package: {base-files: {versions: ['0']}}").outcome == "fail"
    assert look("package: {no-such-package: {installed: false}}").outcome == "pass"
    gone = look("package: {no-such-package: {versions: ['1']}}")
    assert gone.outcome == "fail"
    assert gone.findings[1].found == "it is not installed"


def test_a_tool_that_is_missing_makes_it_inconclusive() -> None:
    answers = {
        "uname -s": ran(0, "Linux\n"),
        "uname -m": ran(0, "x86_64\n"),
        "os-release": ran(0, "ID=debian\n"),
    }
    result = look("port: {tcp:80: }", TableProbe(answers))
    assert result.outcome == "inconclusive"
    assert "testinfra cannot tell" in result.reason


def test_a_machine_that_goes_away_under_testinfra() -> None:
    report = run(
        "required: {file: {/x: }}",
        TableProbe({"test -e": GuestUnreachable("cut"), "uname": ran(0, "Linux")}),
    )
    assert report.results[0].outcome == "inconclusive"


class HangingProbe(LocalProbe):
    """Its `stat` never ends, and it notes whether that was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = asyncio.Event()
        self.was_cancelled = False

    @override
    async def run(self, command: Any, *, timeout_seconds: float, **kwargs: Any) -> Ran:
        if "stat -L" not in command:
            return await super().run(command, timeout_seconds=timeout_seconds, **kwargs)
        self.hangs.set()
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.Event().wait()
        except TimeoutError:
            return ran(137, timed_out=True)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        raise AssertionError


def test_a_hang_under_testinfra_ends_at_the_limit() -> None:
    result = look("file: {/etc/passwd: {mode: '0644', timeoutSeconds: 0.5}}", HangingProbe())
    assert (result.outcome, result.reason) == ("fail", "it did not end within 0.5 s")


def test_a_cancelled_run_ends_what_testinfra_does() -> None:
    async def both() -> None:
        probe = HangingProbe()
        plan = parse_checks("required: {file: {/etc/passwd: {mode: '0644'}}}", source="t")
        running = asyncio.get_running_loop().create_task(run_checks(plan, probe))
        await probe.hangs.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert probe.was_cancelled

    before = threading.active_count()
    asyncio.run(both())
    assert threading.active_count() <= before


class _Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = {"/ok": 200, "/moved": 302}.get(self.path, 404)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/ok")
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        said = self.headers.get("Authorization", "")
        self.wfile.write(f"all is well\n{said}\n".encode())

    do_PUT = do_GET

    @override
    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "wanted", "outcome"),
    [
        (
            "/ok",
            "status: 200, body: [well, '!error'], headers: ['Content-Type: text/plain']",
            "pass",
        ),
        ("/ok", "body: [error]", "fail"),
        ("/gone", "", "fail"),
        ("/gone", "status: 404", "pass"),
        ("/moved", "", "pass"),
        ("/moved", "status: 302, no-follow-redirects: true", "pass"),
        ("/ok", "username: a, password: b, body: [Basic YTpi]", "pass"),
        ("/ok", "method: PUT, request-body: x, request-headers: ['X-Y: z']", "pass"),
    ],
)
def test_http(site: str, path: str, wanted: str, outcome: str) -> None:
    result = look(f"http: {{'{site}{path}': {{{wanted}}}}}")
    assert result.outcome == outcome, result


def test_http_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    result = look(f"http: {{'http://127.0.0.1:{port}/': }}")
    assert result.outcome == "fail"
    assert "ConnectionRefusedError" in result.reason


def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        result = look(f"http: {{'http://127.0.0.1:{port}/': {{timeout: 700}}}}")
    assert result.outcome == "fail"


@pytest.mark.parametrize(
    "answer",
    [ran(0, "not json"), ran(0, "[]"), ran(0, '{"status": "x", "headers": [], "body": ""}'), ran(126), ran(1),
     ran(0, '{"status": 200, "headers": 5, "body": "AA=="}'), ran(0, "[" * 100_000)],
)  # fmt: skip
def test_a_lying_machine_is_inconclusive(answer: Ran) -> None:
    assert look("http: {'http://x/': }", TableProbe({"python3": answer})).outcome == "inconclusive"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE sessions (id INTEGER PRIMARY KEY, title TEXT)")
    connection.executemany(
        "INSERT INTO sessions (title) VALUES (?)", [(f"s{n}",) for n in range(500)]
    )
    connection.commit()
    connection.close()
    return path


def test_sqlite(database: Path) -> None:
    before = sorted(path.name for path in database.parent.iterdir())
    content = database.read_bytes()
    result = look(
        f"""sqlite: {{{database}: {{min-rows: {{sessions: 500}}, query: {{"SELECT count(*) FROM sessions": 500,
        "SELECT title FROM sessions ORDER BY id LIMIT 2": [s0, s1]}}, schema: {{match-regexp: '^[0-9a-f]{{64}}$'}}}}}}"""
    )
    assert result.outcome == "pass", result
    assert sorted(path.name for path in database.parent.iterdir()) == before
    assert database.read_bytes() == content


def test_sqlite_while_it_is_in_use(database: Path) -> None:
    connection = sqlite3.connect(database)
    connection.execute("INSERT INTO sessions (title) VALUES ('new')")
    connection.commit()
    before = sorted(path.name for path in database.parent.iterdir())
    assert len(before) == 3
    result = look(f"sqlite: {{{database}: {{min-rows: {{sessions: 501}}, write-canary: true}}}}")
    assert result.outcome == "pass", result
    assert sorted(path.name for path in database.parent.iterdir()) == before
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)
    connection.close()


def _damage(path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    if kind == "header":
        data[:16] = bytes(16)
    elif kind == "page":
        data[4096 : 4096 + 200] = b"\xff" * 200
    elif kind == "empty":
        data = bytearray()
    elif kind == "rows":
        connection = sqlite3.connect(path)
        connection.execute("DELETE FROM sessions WHERE id > 10")
        connection.commit()
        connection.close()
        return
    elif kind == "schema":
        connection = sqlite3.connect(path)
        connection.execute("ALTER TABLE sessions ADD COLUMN extra TEXT")
        connection.commit()
        connection.close()
        return
    else:
        path.unlink()
        return
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("header", "does not begin as an SQLite database"),
        ("page", "malformed"),
        ("empty", "it is empty"),
        ("rows", "rows of sessions: found 10; wanted ge 500"),
        ("schema", "schema: found"),
        ("gone", "there is no such file"),
    ],
)
def test_damage_to_a_database(database: Path, kind: str, said: str) -> None:
    learned = look(f"sqlite: {{{database}: {{schema: '?'}}}}")
    digest = next(f.found for f in learned.findings if f.attribute == "schema")
    check = f"sqlite: {{{database}: {{min-rows: {{sessions: 500}}, schema: {digest}}}}}"
    assert look(check).outcome == "pass"
    _damage(database, kind)
    result = look(check)
    assert (result.outcome, said in result.reason) == ("fail", True), result


def test_a_log_that_is_deleted_under_its_writer(database: Path) -> None:
    connection = sqlite3.connect(database)
    connection.execute("INSERT INTO sessions (title) VALUES ('lost')")
    connection.commit()
    Path(f"{database}-wal").unlink()
    result = look(f"sqlite: {{{database}: }}")
    connection.close()
    assert result.outcome == "fail"
    assert f"process {os.getpid()} holds a deleted file" in result.reason


def test_a_locked_database_is_inconclusive(database: Path) -> None:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    result = look(f"sqlite: {{{database}: {{timeoutSeconds: 3}}}}")
    connection.close()
    assert result.outcome == "inconclusive"
    assert "somebody else holds the database" in result.reason


def test_a_query_that_would_write_is_refused(database: Path) -> None:
    before = database.read_bytes()
    sql = "DELETE FROM sessions"
    assert look(f"sqlite: {{{database}: {{query: {{{sql}: 1}}}}}}").outcome == "fail"
    attach = f"ATTACH ''{database.parent}/other.db'' AS other"
    assert look(f"sqlite: {{{database}: {{query: {{'{attach}': 1}}}}}}").outcome == "fail"
    assert database.read_bytes() == before
    assert not (database.parent / "other.db").exists()


def test_executables_really_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torpor.recovery.checks import folders

    (tmp_path / "required.d").mkdir()
    script = tmp_path / "required.d" / "alive"
    script.write_text("#!/bin/sh\necho 'OK | load=1;2'\n")
    script.chmod(0o755)
    (tmp_path / "required.d" / "README").write_text("not run")
    monkeypatch.setattr(folders, "_LIST", folders._LIST.replace(folders.ROOT, str(tmp_path)))
    monkeypatch.setattr(folders, "ROOT", str(tmp_path))
    plan = parse_checks("folders: true", source="t")
    report = asyncio.run(run_checks(plan, LocalProbe()))
    (result,) = report.results
    if os.geteuid() == 0:
        assert (result.key, result.outcome) == ("required/executable:alive", "pass")
        assert result.measurements[0].label == "load"
    else:
        assert "belongs to uid" in result.reason
