"""The daemon as a process of its own: started by clients, once, and never in another's way."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from torpor import Sandbox
from torpor.base.home import Home
from torpor.base.proc import ProcessId
from torpor.errors import Busy, DaemonUnreachable, HostNotReady, NotFound
from torpor.sdk.client import Client, connection
from torpor.sdk.daemon import answers, ensure_daemon
from torpor.sdk.loop import loop_thread

FAKES = Path(__file__).parents[2] / "fakes/site"
DAEMON = [sys.executable, "-m", "torpor.server"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path / "home")
    yield found
    for pid in pids(found):
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


@pytest.fixture(autouse=True)
def _fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKES), prepend=os.pathsep)


def pids(home: Home) -> list[int]:
    """Return the daemons of a home, by their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal():
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"torpor.server" in words and os.fsencode(home.root) in words:
                    state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
                    if state != b"Z":
                        found.append(int(entry.name))
    return found


def version(home: Home) -> Any:
    async def ask() -> Any:
        return await connection(Client(home=home.root)).call("GET", "/v1/version")

    return loop_thread.run(ask())


def wait_gone(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    assert ProcessId.of(pid) is None


def test_a_script_starts_it_and_the_next_uses_it(home: Home) -> None:
    with Sandbox.create(client=Client(home=home.root)) as sandbox:
        assert sandbox.exec("echo hi").stdout == "hi\n"
    (pid,) = pids(home)
    assert version(home)["pid"] == pid
    assert stat.S_IMODE(home.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.daemon_log.stat().st_mode) == 0o600
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/fd/0").resolve() == Path("/dev/null")
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert not home.socket.exists()


def test_it_keeps_no_file_of_who_started_it(home: Home, tmp_path: Path) -> None:
    """A script's lock, say: `flock` in a shell hands it on."""
    lock = tmp_path / "lock"
    with lock.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        ensure_daemon(home)
    (pid,) = pids(home)
    open_there = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            open_there.append(str(entry.readlink()))
    assert str(home.daemon_log) in open_there, "it can be seen what is open"
    assert str(lock) not in open_there


def test_ten_clients_start_one(home: Home) -> None:
    code = (
        "from torpor import Sandbox, Client; from pathlib import Path; import sys; "
        "print(Sandbox.create(client=Client(home=Path(sys.argv[1]))).id)"
    )
    argv = [sys.executable, "-c", code, str(home.root)]
    started = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    ids = set()
    for process in started:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        ids.add(out.strip())
    assert len(ids) == 10
    assert len(pids(home)) == 1
    assert {s.id for s in Sandbox.list(client=Client(home=home.root))} == ids


def test_after_kill_9_the_next_call_starts_another(home: Home) -> None:
    ensure_daemon(home)
    first = version(home)["pid"]
    os.kill(first, signal.SIGKILL)
    wait_gone(first)
    assert home.socket.exists()  # stale
    assert not answers(home)
    second = version(home)["pid"]
    assert second != first
    assert pids(home) == [second]


def test_an_exec_outlives_its_daemon_but_not_a_fake_s_memory(home: Home) -> None:
    from torpor.errors import CommandLost

    sandbox = Sandbox.create(client=Client(home=home.root))
    events = sandbox.exec_stream("echo part; sleep 60")
    next(events)
    pid = version(home)["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(CommandLost, match="no longer known"):
        list(events)
    assert pids(home) != [pid]


def test_a_second_daemon_is_refused(home: Home) -> None:
    ensure_daemon(home)
    done = subprocess.run(
        [*DAEMON, "--home", str(home.root)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == Busy.exit_code
    assert f"another daemon serves {home.root}" in done.stderr
    assert answers(home)


def test_a_stale_socket_file_is_replaced(home: Home) -> None:
    home.prepare()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home.socket))
    home.socket.chmod(0o666)
    ensure_daemon(home)
    assert stat.S_IMODE(home.socket.stat().st_mode) == 0o600


def test_a_home_with_a_long_path(tmp_path: Path) -> None:
    home = Home(tmp_path / ("long" * 25) / ("path" * 25))
    try:
        with Sandbox.create(client=Client(home=home.root)) as sandbox:
            assert sandbox.exec("echo hi").stdout == "hi\n"
    finally:
        for pid in pids(home):
            os.kill(pid, signal.SIGTERM)
            wait_gone(pid)


def _ready(
    home: Home, *args: str, env: dict[str, str] | None = None
) -> tuple[str, subprocess.Popen[str]]:
    read_fd, write_fd = os.pipe()
    process = subprocess.Popen(
        [*DAEMON, "--home", str(home.root), "--ready-fd", str(write_fd), *args],
        pass_fds=[write_fd],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
    )
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        return pipe.read(), process


def _ended(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return err


def test_ready_is_said_on_the_pipe_which_is_then_closed(home: Home) -> None:
    said, process = _ready(home)
    assert said == "ready\n"
    assert answers(home)
    log = _ended(process)
    assert "stopping; machines run on" in log
    assert not home.socket.exists()


TORPOR = [sys.executable, "-m", "torpor.cli"]


def _torpor(home: Home, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TORPOR, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"TORPOR_HOME": str(home.root)} | env,
    )


def _url(process: subprocess.Popen[str]) -> str:
    """Return the address that a `serve` says on stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"listen(?:ing|s) on (http://\S+?),?(\s|$)", line):
            return found[1]
    raise AssertionError(f"it ended with {process.wait(10)} and said no address")


def _serve(home: Home, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TORPOR, "serve", *words],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TORPOR_HOME": str(home.root)},
    )


def test_tcp_with_tokens_that_outlive_the_daemon(home: Home) -> None:
    process = _serve(home, "--host", "127.0.0.1", "--port", "0")
    url = _url(process)
    assert httpx.get(f"{url}/v1/me").status_code == 401
    made = _torpor(home, "token", "create", "ci", "--scope", "use", "--expires", "90d", "--json")
    assert made.returncode == 0, made.stderr
    token = json.loads(made.stdout)["token"]
    assert json.loads(made.stdout)["id"].startswith("tok_")
    headers = {"authorization": f"Bearer {token}"}
    assert httpx.get(f"{url}/v1/me", headers=headers).json()["scope"] == "use"
    assert token not in _ended(process)

    process = _serve(home, "--host", "127.0.0.1", "--port", "0")
    url = _url(process)
    assert httpx.get(f"{url}/v1/me", headers=headers).status_code == 200
    listed = _torpor(home, "token", "ls", "--json").stdout
    assert [found["name"] for found in json.loads(listed)] == ["ci"]
    assert token not in listed
    removed = _torpor(home, "token", "rm", "ci")
    assert (removed.stdout, removed.returncode) == ("ci\n", 0), removed.stderr
    assert httpx.get(f"{url}/v1/me", headers=headers).status_code == 401
    assert _torpor(home, "token", "rm", "ci").returncode == NotFound.exit_code
    assert token not in _ended(process)
    for path in home.root.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path


def test_a_daemon_that_runs_is_asked_to_listen_too(home: Home) -> None:
    ensure_daemon(home)
    (pid,) = pids(home)
    token = _torpor(home, "token", "create", "ci", "--scope", "read").stdout.strip()
    process = _serve(home, "--host", "127.0.0.1", "--port", "0")
    url = _url(process)
    headers = {"authorization": f"Bearer {token}"}
    assert httpx.get(f"{url}/v1/version", headers=headers).json()["pid"] == pid
    port = url.rpartition(":")[2]
    taken = _torpor(home, "serve", "--host", "127.0.0.1", "--port", port)
    assert taken.returncode == 73
    assert "choose another port" in taken.stderr
    _ended(process)
    for _ in range(100):  # the daemon notices that the client is gone
        try:
            httpx.get(f"{url}/v1/version", headers=headers)
        except httpx.ConnectError:
            break
    else:
        raise AssertionError("it still listens")
    assert pids(home) == [pid]
    assert version(home)["pid"] == pid


def test_who_waits_is_told_when_the_daemon_ends(home: Home) -> None:
    ensure_daemon(home)
    (pid,) = pids(home)
    process = _serve(home, "--host", "127.0.0.1", "--port", "0")
    _url(process)
    os.kill(pid, signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == DaemonUnreachable.exit_code
    assert "the daemon ended" in err
    wait_gone(pid)


def test_serve_without_tcp_beside_a_daemon_is_refused(home: Home) -> None:
    ensure_daemon(home)
    done = _torpor(home, "serve")
    assert done.returncode == Busy.exit_code
    assert f"error: a daemon serves {home.root} already" in done.stderr
    assert "--host ADDRESS" in done.stderr


def test_serve_on_tcp_wants_an_address(home: Home) -> None:
    """Without one nothing would listen on TCP, and nobody would know."""
    done = _torpor(home, "serve", "--port", "8080")
    assert done.returncode == 64
    assert "there is no --host" in done.stderr
    assert pids(home) == []
    argv = [*DAEMON, "--home", str(home.root), "--allow-host", "box.example"]
    daemon = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert daemon.returncode == 2
    assert "there is no --host" in daemon.stderr


@pytest.mark.parametrize("words", [("--expires", "soon"), ("--scope", "all"), ("--expires", "0s")])
def test_tokens_that_cannot_be(home: Home, words: tuple[str, str]) -> None:
    done = _torpor(home, "token", "create", "x", "--scope", "use", *words)
    assert done.returncode == 64, done.stderr
    assert "hint:" in done.stderr


def test_a_port_that_is_taken(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said, process = _ready(home, "--host", "127.0.0.1", "--port", str(port))
        process.communicate(timeout=30)
    assert json.loads(said)["code"] == "object.conflict"
    assert process.returncode == 73
    assert not home.socket.exists()


def test_what_the_daemon_lacks_comes_through_with_its_hint(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_FAKE_LACKS", "QEMU is missing")
    with pytest.raises(HostNotReady, match="QEMU is missing") as caught:
        Sandbox.create(client=Client(home=home.root))
    assert caught.value.hint == "install it"
    assert pids(home) == []


def test_a_daemon_that_cannot_run_is_shown_with_its_log(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_FAKE_CRASHES", "1")
    with pytest.raises(DaemonUnreachable, match="ZeroDivisionError") as caught:
        Sandbox.create(client=Client(home=home.root))
    assert str(home.daemon_log) in str(caught.value.hint)


def test_a_daemon_that_does_not_get_ready_in_time(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_FAKE_STARTS_S", "30")
    with pytest.raises(DaemonUnreachable, match="did not start"):
        ensure_daemon(home, limit_s=0.5)


def test_a_home_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DaemonUnreachable, match="cannot be used"):
        Sandbox.create(client=Client(home=tmp_path / "file/home"))


def test_env_values_are_never_logged(home: Home) -> None:
    sandbox = Sandbox.create(client=Client(home=home.root), env={"KEY": "hunter2-create"})
    sandbox.exec("echo x", env={"KEY": "hunter2-exec"})
    with contextlib.suppress(Exception):
        sandbox.exec("true", user="hunter2-user", stdin="hunter2-stdin")
    assert "hunter2" not in home.daemon_log.read_text()


def test_a_request_in_flight_does_not_hold_up_the_end(home: Home) -> None:
    ensure_daemon(home)
    sandbox = Sandbox.create(client=Client(home=home.root))
    events = sandbox.exec_stream("echo a; sleep 60")
    next(events)
    pid = version(home)["pid"]
    os.kill(pid, signal.SIGTERM)
    wait_gone(pid)
    events.close()  # type: ignore[attr-defined]
