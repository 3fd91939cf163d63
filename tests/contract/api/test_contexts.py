"""Code contexts over REST, in Python and on the command line, with a fake machine."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from tests.contract.api.conftest import Rest
from tests.contract.api.test_cli import Cli, offered
from tests.fakes.serving import ServerThread
from torpor import AsyncSandbox, Sandbox
from torpor.errors import (
    GuestFailed,
    InvalidRequest,
    KernelMissing,
    NotFound,
    OperationTimeout,
    WrongState,
)
from torpor.model_contexts import CodeEnded, CodeStarted

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def sandbox(server: ServerThread) -> Sandbox:
    return Sandbox.create()


def url(sandbox: Sandbox, rest: str = "") -> str:
    return f"/v1/sandboxes/{sandbox.id}/{rest}"


def test_rest_makes_lists_and_ends_contexts(rest: Rest, sandbox: Sandbox) -> None:
    made = rest.ok("POST", url(sandbox, "contexts"), status=201)
    assert (made["language"], made["state"]) == ("python", "running")
    assert set(made) == {"id", "language", "state", "user", "cwd", "created_at"}
    other = rest.ok(
        "POST", url(sandbox, "contexts"), json={"language": "bash", "cwd": "/srv"}, status=201
    )
    page = rest.ok("GET", url(sandbox, "contexts?limit=1"))
    assert [c["id"] for c in page["items"]] == [made["id"]]
    rest_of = rest.ok("GET", url(sandbox, f"contexts?cursor={page['next_cursor']}"))
    assert [(c["id"], c["cwd"]) for c in rest_of["items"]] == [(other["id"], "/srv")]
    one = url(sandbox, f"contexts/{made['id']}")
    assert rest.ok("GET", one) == made
    rest.ok("POST", f"{one}/interrupt", status=204)
    assert rest.ok("POST", f"{one}/restart") == made
    rest.ok("DELETE", one, status=204)
    rest.fails("DELETE", one, 404, "object.not_found")
    rest.fails("POST", f"{one}/run", 404, "object.not_found", json={"code": "x"})


def test_rest_runs_code(rest: Rest, sandbox: Sandbox) -> None:
    found = rest.ok("POST", url(sandbox, "run"), json={"code": f"hello\nshow image/png {PNG}"})
    assert (found["context_id"], found["status"]) == ("ctx_default_python", "ok")
    assert (found["stdout"], found["stderr"], found["error"]) == ("hello\n", "", None)
    (result,) = found["results"]
    assert result["data"] == {"image/png": PNG, "text/plain": "shown"}
    raised = rest.ok("POST", url(sandbox, "run"), json={"code": "raise KeyError"})
    assert (raised["status"], raised["error"]["name"]) == ("error", "KeyError")
    for wrong in ({}, {"code": 1}, {"code": "x", "timeout_seconds": 0}, {"code": "", "no": 1}):
        rest.fails("POST", url(sandbox, "run"), 400, "request.invalid", json=wrong)
    bad = rest.fails("POST", url(sandbox, "run"), 502, "guest.failed", json={"code": "nonsense"})
    assert "makes no sense" in bad["error"]


def test_rest_streams(rest: Rest, sandbox: Sandbox) -> None:
    events = rest.events(
        "POST", url(sandbox, "run/stream"), json={"code": "a\nraise E", "language": "bash"}
    )
    assert [name for name, _ in events] == ["started", "stdout", "raised", "done"]
    assert events[0][1] == {"context_id": "ctx_default_bash", "language": "bash"}
    assert events[-1][1]["status"] == "error"
    limit = {"code": "a\nlimit", "timeout_seconds": 2}
    name, data = rest.events("POST", url(sandbox, "run/stream"), json=limit)[-1]
    assert (name, data["code"]) == ("error", "operation.timeout")
    assert "timeout" in data["error"]
    assert data["facts"]["restarted"] is True


def test_in_python(sandbox: Sandbox) -> None:
    context = sandbox.contexts.create(language="python")
    heard: list[object] = []
    run = context.run(
        f"one\nshow image/png {PNG}\nraise E",
        on_stdout=heard.append,
        on_result=heard.append,
        on_error=heard.append,
    )
    assert (run.text, run.logs.stdout, run.ok) == ("shown", "one\n", False)
    assert run.error is not None
    assert run.error.traceback == "Traceback\nE: why"
    assert (run.results[0].png, run.results[0].html) == (PNG, None)
    assert heard == ["one\n", run.results[0], run.error]
    assert run.context_id == context.id
    assert [c.id for c in sandbox.contexts.list()] == [context.id]
    assert sandbox.run_code("hi", context=context).context_id == context.id
    assert sandbox.run_code("hi", context=context.id).logs.stdout == "hi\n"
    assert sandbox.run_code("hi", language="bash").context_id == "ctx_default_bash"
    assert sandbox.contexts.get("ctx_default_bash").language == "bash"
    first, *_, last = context.run_stream("x")
    assert isinstance(first, CodeStarted)
    assert isinstance(last, CodeEnded)
    with pytest.raises(OperationTimeout) as caught:
        context.run("told\nlimit", timeout_seconds=1)
    assert (caught.value.facts["stdout"], caught.value.facts["restarted"]) == ("told\n", True)
    context.interrupt()
    context.restart()
    context.delete()
    with pytest.raises(NotFound):
        context.refresh()
    with pytest.raises(NotFound):
        context.run("x")
    with pytest.raises(GuestFailed):
        sandbox.run_code("nonsense")
    with pytest.raises(InvalidRequest):
        sandbox.run_code(b"x")  # type: ignore[arg-type]


def test_async_and_many_at_once(server: ServerThread) -> None:
    async def work() -> None:
        sandbox = await AsyncSandbox.create()
        runs = await asyncio.gather(*(sandbox.run_code(f"n {i}") for i in range(5)))
        assert [run.logs.stdout for run in runs] == [f"n {i}\n" for i in range(5)]
        assert len(await sandbox.contexts.list()) == 1

    asyncio.run(work())


def test_no_interpreter_is_an_error_that_names_the_template(
    server: ServerThread, sandbox: Sandbox
) -> None:
    server.guest(sandbox.id).packages = None
    for work in (lambda: sandbox.run_code("x"), lambda: sandbox.contexts.create()):
        with pytest.raises(KernelMissing, match="no python interpreter") as caught:
            work()
        assert caught.value.facts["template"] == "code-interpreter"
    assert [c.language for c in sandbox.contexts.list() if c.info.state == "running"] == []


def test_a_context_goes_along_with_a_fork_and_a_sleep(
    server: ServerThread, sandbox: Sandbox
) -> None:
    context = sandbox.contexts.create()
    sandbox.hibernate()
    assert sandbox.run_code("x", context=context).logs.stdout == "x\n", "it was woken"
    sandbox.pause()
    with pytest.raises(WrongState):
        sandbox.run_code("x")


def test_the_command_line(cli: Cli, sandbox: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "code.sh"
    file.write_text(f"from a file\nshow image/png {PNG}\n")
    assert cli("run", sandbox.id, str(file)) == "from a file\nshown\n"
    assert "note: image/png" in cli.stderr
    assert cli("run", sandbox.id, "-", stdin="piped") == "piped\n"
    assert cli("run", sandbox.id, "-c", "raise E", code=1) == ""
    assert "E: why" in cli.stderr
    cli("run", sandbox.id, str(file), "--save", str(tmp_path / "out"))
    assert (tmp_path / "out" / "001.png").read_bytes().startswith(b"\x89PNG")
    ids = [context["id"] for context in cli.json("context", "ls", sandbox.id)]
    assert offered(f"torpor context rm {sandbox.id} ctx_") == ids
    assert offered(f"torpor run {sandbox.id} --context {ids[0]}") == ids[:1]
    assert offered(f"torpor run {sandbox.id} -l p") == ["python"]
    found = cli.json("run", sandbox.id, "-c", "hi")
    assert (found["stdout"], found["ended"]["status"]) == ("hi\n", "ok")
    assert "timeout" in cli.fails("run", sandbox.id, "-c", "limit", "--timeout", "1", code=80)
    for wrong in (["-c", "x", str(file)], [], ["-c", "x", "-l", "perl"], [str(tmp_path)]):
        cli.fails("run", sandbox.id, *wrong, code=64)
    assert "error: there is no file nothing.py here" in cli.fails(
        "run", sandbox.id, "nothing.py", code=66
    )
    ids = {c["id"] for c in cli.json("context", "ls", sandbox.id)}
    assert ids == {"ctx_default_bash", "ctx_default_python"}
    made = cli("context", "create", sandbox.id, "-l", "bash").strip()
    cli("context", "interrupt", sandbox.id, made)
    cli("context", "restart", sandbox.id, made)
    cli("context", "rm", sandbox.id, made)
    assert made not in cli("context", "ls", sandbox.id)
