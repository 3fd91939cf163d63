"""Code contexts on the real agent, with this computer's bash and ipykernel in place of a machine's."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torpor import model_contexts
from torpor.base.aio import closing
from torpor.contexts import desk
from torpor.contexts.asking import ask
from torpor.contexts.running import Ran, run, run_whole
from torpor.errors import (
    Busy,
    InvalidRequest,
    KernelMissing,
    NotFound,
    OperationTimeout,
    WrongState,
)
from torpor.guest.client import GuestClient
from torpor.model_contexts import CodeSpec, CodeStarted, ContextId, ContextInfo, ContextSpec

pytestmark = pytest.mark.anyio
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path_factory.mktemp("c") / "c"  # short: sockets are in it
    found.mkdir(mode=0o1777)
    monkeypatch.setattr(model_contexts, "CONTEXTS_FOLDER", str(found))
    return found


def spec(language: model_contexts.Language, folder: Path, **env: str) -> ContextSpec:
    env = {"PATH": PATH, "TORPOR_GENERATION_FILE": str(folder / "generation"), **env}
    return ContextSpec(language=language, cwd="/", env=env)


def new_life(folder: Path, number: int, reason: str) -> None:
    """Do what the agent does when its machine goes on from a snapshot."""
    fresh = folder / "fresh"
    fresh.write_text(json.dumps({"generation": number, "reason": reason}))
    fresh.rename(folder / "generation")


async def ran(
    client: GuestClient, context: ContextInfo, code: str, timeout_seconds: float | None = None
) -> Ran:
    return await run_whole(client, context, CodeSpec(code=code, timeout_seconds=timeout_seconds))


@pytest.fixture
async def bash(client: GuestClient, folder: Path) -> AsyncIterator[ContextInfo]:
    return await desk.create(client, spec("bash", folder))


@pytest.fixture
async def python(client: GuestClient, folder: Path) -> AsyncIterator[ContextInfo]:
    new_life(folder, 1, "create")
    return await desk.create(client, spec("python", folder))


async def test_bash_keeps_its_state(client: GuestClient, bash: ContextInfo) -> None:
    first = await ran(client, bash, "x=5; f() { echo f; }; cd /tmp; echo hi; echo oh >&2; (exit 3)")
    assert (first.stdout, first.stderr) == ("hi\n", "oh\n")
    assert first.ended is not None
    assert (first.ended.status, first.ended.exit_code) == ("error", 3)
    second = await ran(client, bash, "echo $x $PWD; f; cat; printf %s é")
    assert second.stdout == "5 /tmp\nf\né", "stdin is empty, and the end needs no newline"
    assert second.ended is not None
    assert (second.ended.exit_code, second.ended.restarted) == (0, False)
    wrong = await ran(client, bash, "if [ ; then")
    assert "syntax error" in wrong.stderr
    ended = (await ran(client, bash, "exit 4")).ended
    assert ended is not None
    assert (ended.exit_code, ended.restarted) == (4, True)
    assert (await ran(client, bash, "echo [$x]")).stdout == "[]\n"


async def test_bash_is_interrupted_at_its_limit(client: GuestClient, bash: ContextInfo) -> None:
    await ran(client, bash, "x=kept")
    with pytest.raises(OperationTimeout, match=r"timeout: the code ran 0\.5 s") as caught:
        await ran(client, bash, "echo begun; sleep 60; echo never", 0.5)
    assert caught.value.facts["stdout"] == "begun\n"
    assert caught.value.facts["restarted"] is False
    assert (await ran(client, bash, "echo $x")).stdout == "kept\n"


async def test_output_is_bounded_and_counted(client: GuestClient, bash: ContextInfo) -> None:
    code = "head -c 3000000 /dev/zero | tr '\\0' x; echo é >&2"
    found = await run_whole(client, bash, CodeSpec(code=code, output_limit_bytes=1000))
    assert found.stdout == "x" * 1000
    assert found.stderr == "é\n"
    assert found.ended is not None
    assert (found.ended.stdout_bytes, found.ended.stderr_bytes) == (3000000, 3)


async def test_runs_come_one_after_the_other_and_can_be_interrupted(
    client: GuestClient, bash: ContextInfo
) -> None:
    async with closing(run(client, bash, CodeSpec(code="sleep 60"))) as events:
        assert isinstance(await anext(events), CodeStarted)
        waiting = [asyncio.create_task(ran(client, bash, f"echo {i}")) for i in range(18)]
        while not (busy := [t for t in waiting if t.done()]):
            await asyncio.sleep(0.01)
        for task in busy:
            with pytest.raises(Busy):
                task.result()
        assert await desk.interrupt(client, bash.id)
        *_, ended = [event async for event in events]
        assert isinstance(ended, model_contexts.CodeEnded)
        assert ended.exit_code == 130
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(each, Ran) for each in done) == 16
    assert not await desk.interrupt(client, bash.id)


async def test_a_restart_waits_for_nobody(client: GuestClient, bash: ContextInfo) -> None:
    await ran(client, bash, "x=1")
    async with closing(run(client, bash, CodeSpec(code="sleep 60"))) as events:
        assert isinstance(await anext(events), CodeStarted)
        waiting = [asyncio.create_task(ran(client, bash, f"echo {i}[$x]")) for i in range(2)]
        while (await ask(client, bash, {"op": "status"}, limit_s=5))["waiting"] < len(waiting):
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            await desk.restart(client, bash.id)
        *_, ended = [event async for event in events]
        assert isinstance(ended, model_contexts.CodeEnded)
        assert (ended.status, ended.restarted) == ("stopped", True)
    assert [r.stdout for r in await asyncio.gather(*waiting)] == ["0[]\n", "1[]\n"]
    await ran(client, bash, "x=2")
    assert (await ran(client, bash, "echo $x")).stdout == "2\n", "it is not started anew again"


async def test_a_listener_that_leaves(client: GuestClient, bash: ContextInfo) -> None:
    async with closing(run(client, bash, CodeSpec(code="sleep 0.3; x=1"))) as events:
        await anext(events)
    assert (await ran(client, bash, "echo $x")).stdout == "1\n", "the code ran on"
    leaving = CodeSpec(code="sleep 60", interrupt_on_disconnect=True)
    async with closing(run(client, bash, leaving)) as events:
        await anext(events)
    assert (await ran(client, bash, "echo $x")).stdout == "1\n", "the code was interrupted"
    assert [e.exec_id for e in await client.exec_list()] == [bash.id], "nothing is kept of requests"


async def test_python_shows_values_errors_and_plots(
    client: GuestClient, python: ContextInfo
) -> None:
    first = await ran(
        client, python, "import sys; x = 5; print('hi'); print('oh', file=sys.stderr)\nx + 1"
    )
    assert (first.stdout, first.stderr) == ("hi\n", "oh\n")
    assert [(r.text, r.is_main) for r in first.results] == [("6", True)]
    assert first.ended is not None
    assert (first.ended.status, first.ended.execution_count) == ("ok", 1)
    failed = await ran(client, python, "1 / 0")
    assert failed.ended is not None
    assert failed.ended.status == "error"
    assert failed.error is not None
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero")
    assert "\x1b" not in failed.error.traceback
    assert "1 / 0" in failed.error.traceback
    shown = await ran(
        client,
        python,
        "from IPython.display import HTML, SVG, JSON, Image, display\n"
        "display(HTML('<b>b</b>'), SVG('<svg/>'), JSON({'a': [1, None]}))\n"
        "display(Image(data=b'\\x89PNG\\r\\n\\x1a\\nrest', format='png'))\n"
        "x",
    )
    html, svg, json_, png, main = shown.results
    assert (html.html, svg.svg, json_.json) == ("<b>b</b>", "<svg/>", {"a": [1, None]})
    assert base64.b64decode(png.png or "").startswith(b"\x89PNG")
    assert (main.text, main.is_main, html.is_main) == ("5", True, False)


async def test_python_is_interrupted_restarted_and_survives_its_death(
    client: GuestClient, python: ContextInfo
) -> None:
    with pytest.raises(OperationTimeout) as caught:
        await ran(client, python, "x = 1\nwhile True: pass", 0.5)
    assert caught.value.facts["restarted"] is False
    assert (await ran(client, python, "x")).results[0].text == "1"
    died = await ran(client, python, "import os; os._exit(3)")
    assert died.error is not None
    assert died.error.name == "KernelDied"
    assert died.ended is not None
    assert (died.ended.status, died.ended.restarted) == ("died", True)
    await ran(client, python, "x = 2")
    await desk.restart(client, python.id)
    gone = await ran(client, python, "x")
    assert gone.error is not None
    assert gone.error.name == "NameError"


async def test_a_value_that_is_too_large_is_named(client: GuestClient, python: ContextInfo) -> None:
    code = "class V:\n def _repr_html_(self): return 'x' * (9 << 20)\n def __repr__(self): return 'small'\nV()"
    (found,) = (await ran(client, python, code)).results
    assert (found.text, found.html, dict(found.omitted)) == ("small", None, {"text/html": 9 << 20})


async def test_a_machine_that_has_a_twin_draws_new_randomness(
    client: GuestClient, python: ContextInfo, folder: Path
) -> None:
    seeded = "import random; random.seed(7); first = random.random()"
    expected = "random.seed(7); random.random(); random.getrandbits(64)"
    await ran(client, python, seeded)
    new_life(folder, 2, "wake")
    woken = await ran(client, python, f"a = random.getrandbits(64); {expected} == a")
    assert woken.results[0].text == "True", "one that only woke goes on exactly"
    await ran(client, python, seeded)
    new_life(folder, 3, "fork")
    forked = await ran(client, python, f"a = random.getrandbits(64); {expected} == a")
    assert forked.results[0].text == "False"
    async with closing(
        run(client, python, CodeSpec(code=(
            "random.seed(7); before = random.getstate()\n"
            "print('begun', flush=True)\n"
            "while random.getstate() == before: pass"
        ), timeout_seconds=60))
    ) as events:  # fmt: skip
        async for event in events:
            if isinstance(event, model_contexts.CodeOutput):
                new_life(folder, 4, "restore")
    drawn = (folder / python.id / "drawn").read_text().split()
    assert drawn[1] == "4", "it is said for the hook that waits for it"


async def test_the_hook_waits_for_the_interpreters(folder: Path, tmp_path: Path) -> None:
    from torpor.templates import recipe

    made = recipe.load(recipe.find("code-interpreter"))
    (hook,) = [f for f in made.files if "on-restore" in f.target]
    text = (hook.content or "").replace("/run/torpor/contexts", str(folder))
    (folder / "ctx_a").mkdir()
    drawn = folder / "ctx_a" / "drawn"
    script = tmp_path / "hook"
    script.write_text(text.replace("left=100", "left=4"))

    async def waits(reason: str = "fork") -> int:
        process = await asyncio.create_subprocess_exec(
            "sh", script, reason, env={"TORPOR_GENERATION": "7", "PATH": "/usr/bin:/bin"},
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        return await process.wait()

    assert await waits() == 0, "there is none"
    drawn.write_text(f"{os.getpid()} 7\n")
    assert await waits() == 0, "it has"
    drawn.write_text(f"{os.getpid()} 6\n")
    assert await waits() == 1, "it has not"
    assert await waits("wake") == 0, "it need not"
    drawn.write_text(f"{(1 << 22) + 1} 6\n")
    assert await waits() == 0, "it is dead"


async def test_contexts_are_listed_found_and_forgotten(
    client: GuestClient, bash: ContextInfo, folder: Path
) -> None:
    assert [c.id for c in await desk.list_contexts(client)] == [bash.id]
    assert (await desk.get(client, bash.id)).state == "running"
    await desk.delete(client, bash.id)
    assert await desk.list_contexts(client) == []
    assert not (folder / bash.id).exists()
    for action in (desk.get, desk.delete, desk.interrupt, desk.restart):
        with pytest.raises(NotFound, match="no code context"):
            await action(client, bash.id)
    with pytest.raises(NotFound):
        await desk.get(client, ContextId("not an id"))


async def test_a_context_that_is_stuck_or_killed(
    client: GuestClient, bash: ContextInfo, folder: Path
) -> None:
    other = await desk.create(client, spec("bash", folder))
    (pid,) = {
        p.pid for p in await client.processes() if p.exec_id == bash.id and "serve.py" in p.command
    }
    os.kill(pid, 9)
    while (await desk.get(client, bash.id)).state == "running":
        await asyncio.sleep(0.01)
    with pytest.raises(WrongState, match="is ended"):
        await desk.running(client, bash.id)
    await desk.delete(client, bash.id)
    (pid,) = {
        p.pid for p in await client.processes() if p.exec_id == other.id and "serve.py" in p.command
    }
    os.kill(pid, 19)
    await desk.delete(client, other.id)
    assert await desk.list_contexts(client) == []
    assert not [p for p in await client.processes() if p.exec_id in (bash.id, other.id)]


async def test_the_default_context_is_made_once_and_made_again(
    client: GuestClient, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(desk, "ContextSpec", lambda language: spec(language, folder))
    one, two = await asyncio.gather(desk.default(client, "bash"), desk.default(client, "bash"))
    assert one.id == two.id == "ctx_default_bash"
    await ran(client, one, "x=1")
    assert (await ran(client, await desk.default(client, "bash"), "echo $x")).stdout == "1\n"
    await desk.delete(client, one.id)
    assert (await ran(client, await desk.default(client, "bash"), "echo [$x]")).stdout == "[]\n"


async def test_a_context_that_starts_is_waited_for(
    client: GuestClient, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(desk, "ContextSpec", lambda language: spec(language, folder))
    starting = asyncio.create_task(desk.default(client, "bash"))
    while True:
        try:
            found = await desk.get(client, model_contexts.default_context("bash"))
            break
        except NotFound:
            await asyncio.sleep(0.001)
    assert not found.is_ready
    assert (await ran(client, await desk.running(client, found.id), "echo a")).stdout == "a\n"
    assert (await ran(client, await desk.default(client, "bash"), "echo b")).stdout == "b\n"
    assert (await starting).is_ready


async def test_what_is_missing_is_told_and_leaves_nothing(
    client: GuestClient, folder: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python3").symlink_to("/usr/bin/python3")
    with pytest.raises(KernelMissing, match="no bash") as caught:
        await desk.create(client, spec("bash", folder, PATH=str(bare)))
    assert "code-interpreter" in str(caught.value.hint)
    (bare / "python3").unlink()
    with pytest.raises(KernelMissing, match="no python3"):
        await desk.create(client, spec("python", folder, PATH=str(bare)))
    with pytest.raises(InvalidRequest, match="nobody-at-all"):
        await desk.create(client, ContextSpec(language="bash", user="nobody-at-all"))
    assert await desk.list_contexts(client) == []
    assert not [p for p in folder.iterdir() if p.name.startswith("ctx_")]
