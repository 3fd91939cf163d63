"""The synchronous SDK over a real socket; `test_sdk_async` has what is only there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.fakes.serving import ServerThread
from torpor import Sandbox, Templates
from torpor.errors import (
    BuildFailed,
    CommandFailed,
    CommandLost,
    Conflict,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    OperationTimeout,
    WrongState,
)
from torpor.model import BuildEvent, ExecEnded, ExecOutput, ExecStarted, SandboxState

pytestmark = pytest.mark.usefixtures("server")
ODD = "/workspace/a\udc80b +&=%#é\n"


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox.create(env={"A": "1"})


def test_the_five_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Sandbox.create(template="base", ttl_seconds=3600) as sbx:
        r = sbx.exec("uname -a && python3 --version", timeout_seconds=30)
        print(r.stdout, r.exit_code, r.duration_ms)
        sbx.filesystem.write("/workspace/notes.md", "resume at step 4\n")
        print(sbx.filesystem.read_text("/workspace/notes.md"))
    assert capsys.readouterr().out.endswith("resume at step 4\n\n")
    assert Sandbox.get(sbx.id).info.state == SandboxState.DELETED


def test_create_get_list(sandbox: Sandbox) -> None:
    other = Sandbox.create(
        "agent",
        vcpus=2,
        ram_mib=1024,
        disk_gib=8,
        network="none",
        metadata={"who": "ä"},
        ttl_seconds=9,
    )
    info = other.info
    assert (info.vcpus, info.ram_mib, info.disk_gib, info.network) == (2, 1024, 8, "none")
    assert (info.template, info.ttl_seconds, info.metadata) == ("agent", 9, {"who": "ä"})
    assert info.expires_at is not None
    assert Sandbox.get(other.id).info == info
    assert [s.id for s in Sandbox.list(page_size=1)] == [other.id, sandbox.id]
    assert [s.id for s in Sandbox.list(metadata={"who": "ä"})] == [other.id]
    assert [s.id for s in Sandbox.list(template="base", state="running")] == [sandbox.id]
    assert repr(other) == f"<Sandbox {other.id} running>"


def test_errors_keep_their_class_hint_and_facts() -> None:
    with pytest.raises(NotFound) as caught:
        Sandbox.create("nosuch")
    assert str(caught.value.hint).startswith(
        "built are: agent, base; to be had with torpor template build: "
    )
    assert caught.value.facts == {"template": "nosuch"}
    with pytest.raises(InsufficientResources):
        Sandbox.create(ram_mib=1 << 20)
    with pytest.raises(InvalidRequest):
        Sandbox.create(vcpus=0)
    with pytest.raises(NotFound):
        Sandbox.get("../../etc")


def test_methods_on_the_class_and_on_the_instance(sandbox: Sandbox) -> None:
    Sandbox.pause(sandbox.id)
    assert Sandbox.refresh(sandbox.id).state == SandboxState.PAUSED
    with pytest.raises(WrongState):
        sandbox.exec("true")
    sandbox.resume()
    assert sandbox.refresh().state == SandboxState.RUNNING
    assert sandbox.info.state == SandboxState.RUNNING
    Sandbox.set_ttl(sandbox.id, 60, on_timeout="hibernate")
    assert (sandbox.refresh().ttl_seconds, sandbox.info.on_timeout) == (60, "hibernate")
    sandbox.set_ttl(None)
    assert sandbox.refresh().expires_at is None
    Sandbox.kill(sandbox.id)
    sandbox.delete()
    with pytest.raises(NotFound):
        Sandbox.delete("sbx_00000000000000000000")


def test_exec_results(sandbox: Sandbox) -> None:
    result = sandbox.exec("echo out; err bad; exit 3", env={"B": "2"}, cwd="/tmp", user="root")
    assert (result.stdout, result.stderr, result.exit_code, result.ok) == (
        "out\n",
        "bad\n",
        3,
        False,
    )
    assert result.stdout_raw == b"out\n"
    with pytest.raises(CommandFailed) as caught:
        sandbox.exec("err why; exit 3", check=True)
    assert caught.value.facts["exit_code"] == 3
    assert "why" in caught.value.message
    assert sandbox.exec(["echo", "a b", "$HOME"], check=True).stdout == "a b $HOME\n"
    assert sandbox.exec("cat", stdin=b"\xff\x00").stdout_raw == b"\xff\x00"
    assert sandbox.exec("cat", stdin="").stdout == ""
    assert sandbox.exec("env", env={"A": "2"}).stdout.startswith("A=2\n")


def test_exec_output_over_the_limit(sandbox: Sandbox) -> None:
    result = sandbox.exec("spew 3000000")
    assert (result.stdout_truncated, result.stderr_truncated) == (True, False)
    assert len(result.stdout_raw) == 1 << 20
    assert result.stdout.endswith(f"the whole is in {result.stdout_path}]\n")
    assert len(sandbox.exec("spew 3000000", output_limit_bytes=4 << 20).stdout) == 3000000


def test_exec_timeout_has_the_output(sandbox: Sandbox) -> None:
    with pytest.raises(OperationTimeout, match="timeout") as caught:
        sandbox.exec("echo part; err oops; sleep 60", timeout_seconds=0.1)
    assert caught.value.facts["stdout"] == "part\n"
    assert caught.value.facts["stderr"] == "oops\n"
    assert str(caught.value.facts["exec_id"]).startswith("exec_")


def test_exec_lost(sandbox: Sandbox) -> None:
    with pytest.raises(CommandLost) as caught:
        sandbox.exec("echo part; lost")
    assert caught.value.facts["stdout"] == "part\n"


def test_exec_callbacks_run_in_this_thread_and_may_call_again(sandbox: Sandbox) -> None:
    seen: list[tuple[str, str, bool]] = []

    def note(stream: str, text: str) -> None:
        sandbox.refresh()
        seen.append((stream, text, threading.current_thread() is threading.main_thread()))

    result = sandbox.exec(
        "hex c3; sleep 0.02; hex a9; err e; spew 2000000",
        on_stdout=lambda text: note("out", text),
        on_stderr=lambda text: note("err", text),
    )
    assert seen[0][0::2] == ("out", True)
    assert seen[0][1].startswith("é")
    assert ("err", "e\n", True) in seen
    assert sum(len(text) for stream, text, _ in seen if stream == "out") == 2000001
    assert result.stdout_truncated


def test_exec_stream(sandbox: Sandbox) -> None:
    events = list(sandbox.exec_stream("echo a; err b; exit 2"))
    assert isinstance(events[0], ExecStarted)
    assert [(e.stream, e.data) for e in events if isinstance(e, ExecOutput)] == [
        ("stdout", b"a\n"),
        ("stderr", b"b\n"),
    ]
    assert isinstance(events[-1], ExecEnded)
    assert events[-1].info.exit_code == 2
    for _ in sandbox.exec_stream("echo a; sleep 60"):
        break  # leaving early only detaches


def test_background_processes(sandbox: Sandbox, server: ServerThread) -> None:
    process = sandbox.exec("cat; exit 5", background=True, stdin=True)
    assert process.info().state == "running"
    assert process.exec_id in [p.exec_id for p in sandbox.processes()]
    process.write_stdin("héllo ")
    process.write_stdin(b"w\xffrld")
    process.close_stdin()
    result = process.wait(timeout_seconds=10)
    assert (result.stdout, result.exit_code) == ("héllo w\ufffdrld", 5)
    assert "".join(process.stdout) == "héllo w\ufffdrld"
    assert "".join(process.stderr) == ""
    with pytest.raises(CommandFailed):
        process.wait(check=True)
    sleeper = sandbox.exec("echo up; sleep 60", background=True)
    with pytest.raises(OperationTimeout, match="runs on"):
        sleeper.wait(timeout_seconds=0.05)
    again = sandbox.attach(sleeper.exec_id, stdout_offset=1)
    assert next(again.stdout) == "p\n"
    sleeper.send_signal("TERM")
    assert (sleeper.wait().exit_code, sleeper.wait().signal) == (143, 15)
    killed = sandbox.exec("sleep 60", background=True)
    killed.kill()
    assert killed.wait().signal == 9
    assert [e.exec_id for e in sandbox.execs()][-1] == killed.exec_id
    with pytest.raises(NotFound):
        sandbox.attach("exec_00000000000000000000")
    with pytest.raises(InvalidRequest, match="nobody could write"):
        sandbox.exec("cat", stdin=True)


def test_files(sandbox: Sandbox) -> None:
    fs = sandbox.filesystem
    info = fs.write(ODD, "ünï", mode=0o600, user="root")
    assert (info.path, info.mode, info.user, info.size_bytes) == (ODD, 0o600, "root", 5)
    assert fs.read_text(ODD) == "ünï"
    assert fs.append(ODD, b"\xff").size_bytes == 6
    assert fs.read(ODD, offset=5) == b"\xff"
    assert fs.read(ODD, offset=0, limit_bytes=1) == b"\xc3"[:1]
    with pytest.raises(UnicodeDecodeError):
        fs.read_text(ODD)
    assert fs.read_text(ODD, errors="replace").endswith("\ufffd")
    assert fs.stat(ODD).kind == "file"
    assert fs.mkdir("/workspace/d/e", mode=0o700).kind == "dir"
    assert [f.path for f in fs.list("/workspace")] == [ODD, "/workspace/d"]
    assert [f.path for f in fs.walk("/workspace")] == [ODD, "/workspace/d", "/workspace/d/e"]
    assert len(list(fs.walk("/workspace", max_depth=1))) == 2
    assert fs.rename(ODD, "/workspace/x").name == "x"
    assert fs.exists("/workspace/x")
    assert not fs.exists(ODD)
    with pytest.raises(Conflict):
        fs.remove("/workspace/d")
    fs.remove("/workspace/d", recursive=True)
    with pytest.raises(NotFound):
        fs.remove("/workspace/d")
    with pytest.raises(NotFound):
        fs.read("/workspace/d")
    with pytest.raises(NotFound):
        list(fs.walk("/nowhere"))
    with pytest.raises(NotFound):
        Sandbox.handle("sbx_00000000000000000000").filesystem.exists("/x")
    fs.write("/gen", (b"ab" for _ in range(1000)))
    assert b"".join(fs.read_stream("/gen")) == b"ab" * 1000


def test_logs(sandbox: Sandbox) -> None:
    assert b"".join(sandbox.logs()) == b"booting\nlogin: \xc3\xa9\xff\n"
    stream = sandbox.logs(follow=True)
    assert next(stream) == b"booting\nlogin: \xc3\xa9\xff\n"
    sandbox.delete()
    assert list(stream) == []


def test_templates(sandbox: Sandbox, tmp_path: Path) -> None:
    assert [t.name for t in Templates.list()] == ["agent", "base"]
    assert Templates.get("base").default_user == "agent"
    steps: list[BuildEvent] = []
    assert Templates.build("fresh", progress=steps.append).name == "fresh"
    assert [s.step for s in steps] == ["plan", "image", "done"]
    (tmp_path / "mine.toml").write_text("mine")
    assert Templates.build(tmp_path / "mine.toml", force=True).name == "mine"
    assert Templates.build(str(tmp_path / "mine.toml")).name == "mine"
    with pytest.raises(BuildFailed) as caught:
        Templates.build("broken")
    assert caught.value.facts["step"] == "run"
    with pytest.raises(NotFound):
        Templates.build("unheard-of")
    Templates.delete("mine")
    with pytest.raises(Conflict):
        Templates.delete("base")


def test_many_threads(sandbox: Sandbox) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda n: sandbox.exec(f"echo {n}").stdout, range(100)))
    assert found == [f"{n}\n" for n in range(100)]


def test_a_version_skew_is_said_once(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from torpor.sdk import client
    from torpor.sdk.loop import loop_thread

    loop_thread.close()
    monkeypatch.setattr(client, "__version__", "9.9.9")
    with pytest.warns(client.VersionSkew, match=r"this client is 9\.9\.9; end the daemon"):
        sandbox.refresh()
    sandbox.refresh()
