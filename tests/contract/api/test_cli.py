"""The command line: output for people and programs, exit codes, errors in words."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.fakes.serving import ServerThread
from torpor import Sandbox, __version__
from torpor.base.home import Home
from torpor.cli.app import app
from torpor.cli.commands import COMMANDS
from torpor.errors import InvalidRequest

pytestmark = pytest.mark.usefixtures("server")
TORPOR = [sys.executable, "-m", "torpor.cli"]


class Cli:
    def __call__(self, *args: str, code: int = 0, stdin: bytes | str | None = None) -> str:
        result = CliRunner().invoke(app, args, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        self.stderr = result.stderr
        self.raw = result.stdout_bytes
        return result.stdout

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code))

    def fails(self, *args: str, code: int) -> str:
        self(*args, code=code)
        assert "Traceback" not in self.stderr
        assert self.stderr.startswith("error: ")
        return self.stderr


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def sandbox() -> str:
    return Sandbox.create(env={"KEY": "secret-value"}, metadata={"who": "me"}).id


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version") == f"torpor {__version__}\n"
    text = cli("--help")
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.help)}$", text, re.MULTILINE)
    for name in COMMANDS:
        assert "Usage:" in cli(name, "--help")
    for word, near in (("crate", "create"), ("chngs", "changes"), ("hibernte", "hibernate")):
        found = CliRunner().invoke(app, [word])
        assert f"No such command '{word}'. Did you mean `{near}`" in found.stderr
        assert found.exit_code == 2
    assert "No such command 'zzz'.\n" in CliRunner().invoke(app, ["zzz"]).stderr
    assert CliRunner().invoke(app, ["ls", "--nonsense"]).exit_code == 2


def test_create_ls_get_rm(cli: Cli) -> None:
    made = cli("create", "base", "--vcpus", "2", "--ttl", "90", "-m", "a=b=c", "-e", "K=v").strip()
    other = cli.json("create", "agent", "--network", "none")
    assert other["network"] == "none"
    table = cli("ls").splitlines()
    assert re.fullmatch(r"ID +STATE +TEMPLATE +CPUS +MEMORY +DISK +AGE +ENDS", table[0].strip())
    assert re.search(
        rf"^{made} +running +base +2 +512 MiB +4\.0 GiB +\d+ s +in (89|90) s|1 min", table[2]
    )
    assert cli("ls", "-q") == f"{other['id']}\n{made}\n"
    assert [s["id"] for s in cli.json("ls", "-m", "a=b=c")] == [made]
    assert cli.json("ls", "--template", "agent", "--state", "paused") == []
    facts = cli("get", made[:9])
    assert re.search(r"^state +running$", facts, re.MULTILINE)
    assert re.search(r"^metadata +a=b=c$", facts, re.MULTILINE)
    assert cli.json("get", made)["metadata"] == {"a": "b=c"}
    assert cli("rm", made, other["id"]) == f"{made}\n{other['id']}\n"
    assert cli("ls") == ""
    assert "torpor create" in cli.stderr
    assert cli.json("get", made)["state"] == "deleted"


def test_a_name_is_shown_and_is_one_sandboxs(cli: Cli, sandbox: str) -> None:
    named = cli("create", "--name", "hermes-1").strip()
    table = cli("ls").splitlines()
    assert re.match(r"ID +NAME +STATE ", table[0])
    assert re.match(rf"{named} +hermes-1 +running ", table[1])
    assert re.match(rf"{sandbox} +- +running ", table[2])
    error = cli.fails("create", "--name", "hermes-1", code=73)
    assert f"{named} has the name 'hermes-1' already" in error
    assert len(cli("ls", "-q").split()) == 2
    cli("rm", "hermes-1")
    cli("create", "--name", "hermes-1")


def test_values_of_the_environment_are_not_shown_to_people(cli: Cli, sandbox: str) -> None:
    text = cli("get", sandbox)
    assert "KEY" in text
    assert "secret-value" not in text
    assert cli.json("get", sandbox)["env_names"] == ["KEY"]


def test_the_volumes_of_a_sandbox_are_shown(cli: Cli) -> None:
    cli("volume", "create", "data")
    made = cli("create", "--volume", "data:/data:ro").strip()
    assert re.search(r"^volumes +data at /data read-only$", cli("get", made), re.MULTILINE)
    cli("volume", "detach", made, "/data")
    assert re.search(r"^volumes +-$", cli("get", made), re.MULTILINE)
    cli("rm", made)
    assert re.search(r"^volumes +-$", cli("get", made), re.MULTILINE)


def test_beginnings_of_ids(cli: Cli, sandbox: str) -> None:
    assert cli.json("get", sandbox[4:12])["id"] == sandbox
    Sandbox.create()
    assert "can be any of" in cli.fails("get", "sbx_", code=64)
    assert "torpor ls" in cli.fails("get", "sbx_zzzz", code=66)
    cli.fails("get", "", code=66)


def test_two_of_one_name_are_told_apart_by_their_ids(cli: Cli) -> None:
    ids = sorted(cli("create", "base", "-m", "name=twin").strip() for _ in range(2))
    said = cli.fails("get", "twin", code=64)
    assert ", ".join(ids) in said
    assert "they have the same name; give an id" in said


def test_errors_have_hint_and_exit_code(cli: Cli, sandbox: str) -> None:
    for name, hint in (
        ("postgres", "build it: torpor template build postgres"),
        ("bsae", "did you mean 'base'?"),
        ("postgers", "did you mean 'postgres'? build it: torpor template build postgres"),
        (
            "zzz",
            "built are: agent, base; to be had with torpor template build: agent, base, code-interpreter, postgres",
        ),
    ):
        said = cli.fails("create", name, code=66)
        assert said == f"error: there is no template {name!r}\nhint: {hint}\n"
    cli.fails("create", "--ram-mib", "9999999", code=69)
    cli.fails("create", "-e", "novalue", code=64)
    cli.fails("create", "--network", "bridge", code=64)
    cli.fails("ttl", sandbox, "soon", code=64)
    cli.fails("ttl", sandbox, "5", "--on-timeout", "explode", code=64)
    cli.fails("rm", code=64)
    cli.fails("rm", sandbox, "--all", code=64)
    cli.fails("get", "sbx_00000000000000000000", code=66)


def test_rm_all_asks(cli: Cli, sandbox: str) -> None:
    assert "--yes" in cli.fails("rm", "--all", code=64)
    assert cli.json("rm", "--all", "--yes") == {"deleted": [sandbox]}


def test_pause_resume_ttl(cli: Cli, sandbox: str) -> None:
    assert cli.json("pause", sandbox)["state"] == "paused"
    cli.fails("exec", sandbox, "true", code=65)
    assert cli("resume", sandbox) == ""
    assert re.fullmatch(r"in (59|60) s|in 1 min", cli("ttl", sandbox, "60").strip())
    assert (
        cli.json("ttl", sandbox, "never", "--on-timeout", "hibernate")["on_timeout"] == "hibernate"
    )
    assert cli("ttl", sandbox, "never") == "never\n"


def test_logs(cli: Cli, sandbox: str) -> None:
    cli("logs", sandbox)
    assert cli.raw == b"booting\nlogin: \xc3\xa9\xff\n"
    assert cli.json("logs", sandbox)["log"].startswith("booting")


def test_exec(cli: Cli, sandbox: str) -> None:
    assert cli("exec", sandbox, "echo a; err b; exit 7", code=7) == "a\n"
    assert cli.stderr == "b\n"
    assert cli("exec", sandbox, "--", "echo", "--flag", "a;b") == "--flag a;b\n"
    assert cli("exec", sandbox, "echo", "-n", "x") == "-n x\n"
    assert (
        cli("exec", "-w", "/tmp", "-u", "root", "-e", "A=1", sandbox, "pwd; whoami")
        == "/tmp\nroot\n"
    )
    cli("exec", sandbox, "hex 00ff")
    assert cli.raw == b"\x00\xff"
    result = json.loads(cli("exec", "--json", sandbox, "echo a; exit 3", code=3))
    assert (result["stdout"], result["exit_code"]) == ("a\n", 3)
    assert "timeout" in cli.fails("exec", "--timeout", "0.05", sandbox, "sleep 9", code=80)
    cli.fails("exec", "-u", "nobody-here", sandbox, "true", code=64)
    cli.fails("exec", sandbox, "--", code=64)
    cli.fails("exec", sandbox, "lost", code=84)


def test_shell(cli: Cli, sandbox: str) -> None:
    assert cli("shell", sandbox, "-c", "echo a; exit 4", code=4) == "a\n"
    assert "-c 'COMMAND'" in cli.fails("shell", sandbox, code=64)


def test_detach_ps_attach(cli: Cli, sandbox: str, server: ServerThread) -> None:
    exec_id = cli("exec", "-d", sandbox, "echo up; cat; exit 5").strip()
    assert cli("attach", sandbox, exec_id, code=5) == "up\n"
    assert cli("attach", "--stdout-offset", "1", sandbox, exec_id, code=5) == "p\n"
    assert cli.json("attach", sandbox, exec_id, code=5)["stdout"] == "up\n"
    table = cli("ps", sandbox, "--execs").splitlines()
    assert re.match(rf"{exec_id} +exited +5 +\d+ +agent", table[1])
    assert cli.json("ps", sandbox, "--execs")[0]["exec_id"] == exec_id
    running = json.loads(cli("exec", "-d", "--json", sandbox, "sleep 60"))["exec_id"]
    assert re.search(rf"{running} +sleep 60", cli("ps", sandbox))
    assert cli.json("ps", sandbox)[1]["exec_id"] == running
    cli.fails("attach", sandbox, "exec_00000000000000000000", code=66)


def test_control_characters_of_a_guest_are_spelled_out(cli: Cli, sandbox: str) -> None:
    cli("exec", "-d", sandbox, "sleep 60; echo \x1b[31mred\x07")
    text = cli("ps", sandbox)
    assert "\x1b" not in text
    assert r"\x1b[31mred\x07" in text


def test_cp(cli: Cli, sandbox: str, tmp_path: Path) -> None:
    (tmp_path / "dir/sub").mkdir(parents=True)
    (tmp_path / "dir/sub/file").write_text("text")
    assert cli("cp", str(tmp_path / "dir/sub/file"), f"{sandbox}:/workspace/") == (
        "1 file, 4 B to /workspace/file\n"
    )
    moved = cli.json("cp", str(tmp_path / "dir"), f"{sandbox[:10]}:/workspace")
    assert moved == {"target": "/workspace/dir", "files": 2, "size_bytes": 4, "skipped": []}
    cli("cp", str(tmp_path / "dir"), f"{sandbox}:/workspace/other")
    assert Sandbox.handle(sandbox).filesystem.read_text("/workspace/other/sub/file") == "text"
    out = tmp_path / "out"
    cli("cp", f"{sandbox}:/workspace/dir", str(out))
    assert (out / "sub/file").read_text() == "text"
    cli("cp", f"{sandbox}:/workspace/dir", str(out))
    assert (out / "dir/sub/file").read_text() == "text"
    cli("cp", f"{sandbox}:/workspace/file", f"{tmp_path}/")
    assert (tmp_path / "file").read_text() == "text"
    name = cli("create", "base", "--name", "hermes-1.b").strip()
    (tmp_path / "a:b").write_text("with a colon")
    cli("cp", str(tmp_path / "a:b"), "hermes-1.b:/workspace/named")
    cli("cp", f"{name}:/workspace/named", f"{tmp_path}/named")
    assert (tmp_path / "named").read_text() == "with a colon"
    cli.fails("cp", "a", "b", code=64)
    cli.fails("cp", f"{sandbox}:/a", f"{sandbox}:/b", code=64)
    cli.fails("cp", f"{sandbox}:/none", str(out), code=66)
    cli.fails("cp", str(tmp_path / "none"), f"{sandbox}:/x", code=66)
    for target in ("new/", "new/file", "new/sub/"):
        error = cli.fails("cp", f"{sandbox}:/workspace/file", f"{tmp_path}/{target}", code=66)
        assert "there is no folder" in error
    assert not (tmp_path / "new").exists(), "as with cp: folders are not made by the way"
    cli("cp", f"{sandbox}:/workspace/dir", f"{tmp_path}/new/")
    assert (tmp_path / "new/sub/file").read_text() == "text"


def offered(line: str) -> list[str]:
    """Return what bash is offered behind `line`."""
    words = line.split(" ")
    env = {
        "_TORPOR_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(app, [], env=env, prog_name="torpor")
    assert not result.stderr
    return result.stdout.split()


def test_the_shell_is_offered_what_is_there(
    cli: Cli, sandbox: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    named = cli("create", "--name", "hermes-1").strip()
    cli("create", "-m", "name=$(reboot)")
    snapshot = cli("snapshot", "hermes-1", "--label", "good").strip()
    cli("snapshot", sandbox, "--label", "`reboot`")
    assert offered("torpor exec her") == ["hermes-1"]
    assert {sandbox, named, "hermes-1"} <= set(offered("torpor hibernate "))
    assert offered(f"torpor get {sandbox[:-1]}") == [sandbox]
    assert {"hermes-1@good", snapshot} <= set(offered("torpor restore "))
    assert {"hermes-1", "hermes-1@good"} == set(offered("torpor fork her"))
    assert offered("torpor change her") == ["hermes-1"]
    cli("volume", "create", "data")
    assert offered("torpor volume get d") == ["data"]
    assert offered("torpor volume attach data her") == ["hermes-1"]
    assert offered("torpor volume create d") == [], "a new name"
    assert offered("torpor create ag") == ["agent"]
    cli("token", "create", "laptop", "--scope", "use")
    assert offered("torpor token rm l") == ["laptop"]
    assert offered("torpor token create ci --scope ") == ["read", "use", "admin"]
    assert {"base", "code-interpreter"} <= set(offered("torpor template build "))
    assert offered("torpor db show x") == []
    assert {"verify", "hermes-1"} <= set(offered("torpor snapshot "))
    for command in ("exec", "restore", "fork"):
        assert "reboot" not in " ".join(offered(f"torpor {command} ")), "needs quoting"
    monkeypatch.delenv("TORPOR_URL", raising=False)
    monkeypatch.setenv("TORPOR_HOME", str(tmp_path / "home"))
    assert offered("torpor exec ") == []
    assert not (tmp_path / "home").exists(), "completion starts no daemon"


def test_what_a_user_is_told(cli: Cli, sandbox: str) -> None:
    shown = cli("snapshot", "-h")
    assert re.search(r"Options of `torpor snapshot SANDBOX`:\n.*--label", shown, re.DOTALL)
    assert "verify" in shown
    assert re.search(
        r"Options of `torpor change SANDBOX REASON`:\n.*--probation", cli("change", "-h"), re.DOTALL
    )
    assert re.search(
        r"Options of `torpor watch SANDBOX`:\n.*--every", cli("watch", "-h"), re.DOTALL
    )
    assert re.search(
        r"Options of `torpor drill SNAPSHOT\|SANDBOX`:\n.*--schedule", cli("drill", "-h"), re.DOTALL
    )
    assert cli("profile", "list") == cli("profile", "ls"), "as it was called before"
    told = cli.fails("create", "--network", "bridge", code=64)
    assert "--network 'bridge'" in told
    assert "--on-timeout" not in told
    assert "--on-timeout 'x'" in cli.fails("create", "--on-timeout", "x", code=64)
    told = cli.fails("layers", "sbx_nope", code=66)
    assert "no sandbox has the name 'sbx_nope'" in told
    assert "and no snapshot's" in cli.fails("layers", "nope", code=66)
    cli("ttl", sandbox, "600")
    cli("hibernate", sandbox)
    assert re.search(r"after (9|10) min of running$", cli("ls"), re.MULTILINE)
    assert re.search(
        r"^ends +after (9|10) min of running, then delete$", cli("get", sandbox), re.MULTILINE
    )


def test_a_program_that_cannot_be_run_is_told_as_by_a_shell(
    cli: Cli, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, code in (("ENOENT", 127), ("ENOTDIR", 127), ("EACCES", 126), (None, 64)):
        facts = {} if number is None else {"step": "program", "errno": number}
        refused = InvalidRequest("the program 'nope' cannot be run", **facts)

        def refuse(*_: object, refused: InvalidRequest = refused, **__: object) -> None:
            raise refused

        monkeypatch.setattr(Sandbox, "exec_stream", refuse)
        assert "cannot be run" in cli.fails("exec", sandbox, "nope", "x", code=code)


def test_templates(cli: Cli, sandbox: str, tmp_path: Path) -> None:
    assert re.match(r"NAME +CPUS +MEMORY", cli("template", "ls"))
    assert [t["name"] for t in cli.json("template", "ls")] == ["agent", "base"]
    assert re.search(r"^default_user +agent$", cli("template", "show", "base"), re.MULTILINE)
    assert cli.json("template", "show", "base")["name"] == "base"
    assert cli("template", "build", "fresh") == "fresh  400 MiB  abababababab\n"
    assert cli.stderr == "plan: planning fresh\nimage: writing the image\ndone: ready\n"
    (tmp_path / "r.toml").write_text("mine")
    assert cli.json("template", "build", str(tmp_path / "r.toml"))["name"] == "mine"
    (tmp_path / "tree.tar").write_bytes(b"")
    made = cli.json("template", "build", "tree", "--rootfs", str(tmp_path / "tree.tar"))
    assert made["name"] == "tree"
    assert cli.json("template", "build", "ours", "--image", "python:3.12")["name"] == "ours"
    assert cli.json("template", "build", "dir", "--image", str(tmp_path))["name"] == "dir"
    cli.fails("template", "build", "x", "--image", "not one!", code=64)
    (tmp_path / "Dockerfile").write_text("FROM base\n")
    words = ("template", "build", "made", "--dockerfile", str(tmp_path / "Dockerfile"))
    assert cli.json(*words, "--context", str(tmp_path))["name"] == "made"
    cli("template", "build", "broken", code=86)
    assert "error: step `run` failed" in cli.stderr
    assert cli("template", "rm", "mine") == "mine\n"
    cli.fails("template", "rm", "base", code=73)
    cli.fails("template", "show", "mine", code=66)


@pytest.mark.parametrize("ok", [True, False])
def test_doctor(cli: Cli, monkeypatch: pytest.MonkeyPatch, ok: bool) -> None:
    status = "ok" if ok else "missing"
    check = {"name": "qemu", "status": status, "found": "none", "why": "w", "fix": "apt install it"}
    monkeypatch.setattr("torpor.doctor.collect_now", lambda _home: {"ok": ok, "checks": [check]})
    text = cli("doctor", code=0 if ok else 78)
    assert re.search(rf"^qemu +{status} +none", text, re.MULTILINE)
    assert ("qemu: apt install it" in text) is not ok
    assert cli.json("doctor", code=0 if ok else 78)["ok"] is ok


@pytest.fixture
def env(home: Home) -> dict[str, str]:
    return os.environ | {"TORPOR_HOME": str(home.root)}


def _run(env: dict[str, str], *args: str, **kwargs: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*TORPOR, *args], env=env, capture_output=True, timeout=30, check=False, **kwargs
    )


def test_as_a_process(env: dict[str, str], sandbox: str) -> None:
    done = _run(env, "exec", sandbox, "echo hi; exit 9")
    assert (done.returncode, done.stdout) == (9, b"hi\n")
    data = os.urandom(300000)
    done = _run(env, "exec", "-i", sandbox, "cat; exit 2", input=data)
    assert (done.returncode, done.stdout == data) == (2, True)
    done = _run(env, "get", "nosuch")
    assert (done.returncode, done.stdout) == (66, b"")
    assert done.stderr.startswith(b"error: ")


def test_file_names_of_any_bytes_come_through(env: dict[str, str], sandbox: str) -> None:
    done = _run(env, "exec", sandbox, b"echo a\xffb")  # type: ignore[arg-type]
    assert done.stdout == b"a\xffb\n"


@pytest.fixture
def sleeping(env: dict[str, str], sandbox: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*TORPOR, "exec", sandbox, "echo up; sleep 60"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_goes_to_the_command(
    sleeping: subprocess.Popen[bytes], sandbox: str, server: ServerThread
) -> None:
    sleeping.send_signal(signal.SIGINT)
    _, err = sleeping.communicate(timeout=20)
    assert sleeping.returncode == 130
    assert err == b""
    assert [e.signal for e in server.guest(sandbox).execs.values()] == [2]


def test_ctrl_c_elsewhere_is_130_without_a_traceback(env: dict[str, str], sandbox: str) -> None:
    with subprocess.Popen(
        [*TORPOR, "logs", "-f", sandbox], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"booting\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == b""


@pytest.mark.parametrize("act", ["create", "fork", "restore"])
def test_ctrl_c_while_machines_are_made_leaves_none(
    cli: Cli, server: ServerThread, sandbox: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {
        "create": [],
        "fork": [sandbox, "-n", "2"],
        "restore": [Sandbox.get(sandbox).snapshot().id],
    }
    make, main = getattr(server.engine, act), threading.main_thread().ident
    assert main is not None
    made = asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> Any:
        signal.pthread_kill(main, signal.SIGINT)
        await asyncio.sleep(0.2)  # the interrupt comes while it is being made
        found = await make(*args, **kwargs)
        made.set()
        return found

    monkeypatch.setattr(server.engine, act, slow)
    assert cli(act, *words[act], code=130) == ""
    assert "is deleted again" in cli.stderr
    assert made.is_set()
    assert [found.id for found in Sandbox.list()] == [sandbox]


def test_a_reader_that_leaves_is_no_traceback(env: dict[str, str], sandbox: str) -> None:
    with subprocess.Popen(
        [*TORPOR, "exec", sandbox, "spew 5000000"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_shell_completion(env: dict[str, str]) -> None:
    words = {"COMP_WORDS": "torpor tem", "COMP_CWORD": "1", "_TORPOR_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'torpor'; from torpor.cli import main; main()",
        ],
        env=env | words,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.split() == [b"template"]


def test_help_and_ls_import_little(env: dict[str, str]) -> None:
    code = (
        "import sys; from torpor.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )

    def loaded(*args: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            env=env,
            capture_output=True,
            timeout=30,
            check=True,
        )
        return set(done.stderr.decode().split())

    assert not {"httpx", "pydantic", "rich", "fastapi", "asyncio"} & loaded("--help")
    assert not {"fastapi", "uvicorn", "numpy", "sqlalchemy", "pygments"} & loaded("ls")
