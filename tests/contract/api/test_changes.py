"""Changes over REST, in Python and on the command line, with looks that a test writes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.conftest import Rest
from tests.contract.api.test_cli import Cli
from tests.fakes.serving import ServerThread
from tests.unit.recovery.stage import ScriptedLooker
from torpor import AsyncChange, AsyncSandbox, Change, Sandbox
from torpor.errors import (
    ChangeFailed,
    ChangeRolledBack,
    CommandFailed,
    Conflict,
    InvalidRequest,
    NotFound,
    TorporError,
    WrongState,
)
from torpor.model_changes import ChangeState
from torpor.recovery import dbos_setup
from torpor.recovery.changes import acts
from torpor.recovery.changes.desk import ChangeDesk
from torpor.sdk import sync_changes

pytestmark = pytest.mark.usefixtures("server", "_looks")
S = ChangeState
SCRIPT = ScriptedLooker.script


@pytest.fixture
def _looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts, "Looker", ScriptedLooker)
    monkeypatch.setattr(dbos_setup, "_POLL_S", 0.05)
    SCRIPT.clear()


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox.create(metadata={"name": "hermes-1"})


@pytest.fixture
def cli() -> Cli:
    return Cli()


# ---- REST ----


def test_a_change_over_rest(rest: Rest, sandbox: Sandbox) -> None:
    path = f"/v1/sandboxes/{sandbox.id}/changes"
    made = rest.ok(
        "POST",
        path,
        json={
            "reason": "why",
            "command": "echo hi; err oh",
            "probation_seconds": 60,
            "author": "ann",
        },
        status=201,
    )
    assert (made["state"], made["require_confirm"], made["memory"]) == ("idle", True, "cold")
    with rest.http.stream("GET", f"/v1/changes/{made['id']}/events") as reply:
        seen: list[dict[str, Any]] = []
        for line in reply.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1].get("state") == "probation":
                    break
    assert [e["chunk"] for e in seen if e.get("stream") == "stdout"] == ["hi\n"]
    assert [e["outcome"] for e in seen if e.get("phase") == "before"] == ["pass"]
    assert [e["seq"] for e in seen] == list(range(1, len(seen) + 1))
    rest.fails("POST", f"/v1/changes/{made['id']}/done", 409, "object.wrong_state")
    rest.fails("POST", f"/v1/changes/{made['id']}/lease", 409, "object.wrong_state")
    again = {"reason": "again", "command": "true"}
    body = rest.fails("POST", path, 409, "object.conflict", json=again)
    assert made["id"] in body["error"]
    kept = rest.ok("POST", f"/v1/changes/{made['id']}/confirm", json={"by": "ann"})
    assert (kept["state"], kept["verdict"], kept["why"]) == ("kept", "kept", "confirmed by ann")
    rest.fails("POST", f"/v1/changes/{made['id']}/confirm", 409, "object.wrong_state")
    rest.fails("POST", f"/v1/changes/{made['id']}/rollback", 409, "object.wrong_state")
    events = rest.events("GET", f"/v1/changes/{made['id']}/events?after=1")
    assert events[-1][0] == "done"
    assert events[-1][1]["state"] == "kept"
    assert rest.ok("GET", "/v1/changes")["changes"][0]["id"] == made["id"]
    assert [c["id"] for c in rest.ok("GET", path)["changes"]] == [made["id"]]
    rest.fails("GET", "/v1/sandboxes/sbx_00000000000000000000/changes", 404, "object.not_found")
    assert rest.ok("GET", f"/v1/changes/{made['id']}") == kept


def test_what_rest_refuses(rest: Rest, sandbox: Sandbox) -> None:
    path = f"/v1/sandboxes/{sandbox.id}/changes"
    for body in (
        {},
        {"reason": "x"},
        {"reason": "x", "command": "y", "kind": "block"},
        {"reason": "x", "command": "y", "memory": "warm"},
        {"reason": "x", "command": "y", "nonsense": 1},
        {"reason": "x", "command": "y", "allow": ["nothing"]},
    ):
        rest.fails("POST", path, 400, "request.invalid", json=body)
    told = rest.fails(
        "POST",
        path,
        400,
        "request.invalid",
        json={"reason": "x", "command": "y", "checks": "required: [", "checks_source": "c.yaml"},
    )
    assert "c.yaml:2:1" in told["error"]
    nobody = {"reason": "x", "command": "y", "profile": "nobody"}
    told = rest.fails("POST", path, 404, "object.not_found", json=nobody)
    assert ("nobody" in told["error"], "hermes" in told["hint"]) == (True, True)
    unknown = "/v1/sandboxes/sbx_00000000000000000000/changes"
    rest.fails("POST", unknown, 404, "object.not_found", json={"reason": "x", "command": "y"})
    for verb in ("confirm", "rollback", "lease", "done", "abort"):
        rest.fails("POST", f"/v1/changes/chg_00000000000000000000/{verb}", 404, "object.not_found")
        rest.fails("POST", f"/v1/changes/nonsense/{verb}", 400, "request.invalid")
    rest.fails("GET", "/v1/changes/chg_00000000000000000000", 404, "object.not_found")
    rest.fails("GET", "/v1/changes/chg_00000000000000000000/events", 404, "object.not_found")
    rest.fails("GET", "/v1/changes/chg_00000000000000000000/report", 404, "object.not_found")
    rest.fails("GET", "/v1/changes?limit=0", 400, "request.invalid")
    assert rest.ok("GET", path)["changes"] == []


def test_reports_in_three_forms(rest: Rest, sandbox: Sandbox) -> None:
    SCRIPT["after"] = ["fail"]
    change = sandbox.change(
        "<script>alert(1)</script>", run="err <b>oh</b>", inventory=False
    ).wait()
    path = f"/v1/changes/{change.id}/report"
    data = rest.ok("GET", path)
    assert (data["version"], data["change"]["state"]) == (1, "rolled_back")
    text = rest.http.get(f"{path}?format=text")
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert "required/command:ready" in text.text
    page = rest.http.get(f"{path}?format=html")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<script>" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
    assert "&lt;b&gt;oh&lt;/b&gt;" in page.text
    assert change.id in change.html()
    for needle in ("http://", "https://", "src=", "<link"):
        assert needle not in page.text
    rest.fails("GET", f"{path}?format=pdf", 400, "request.invalid")


# ---- Python ----


def test_a_block_that_is_kept(sandbox: Sandbox) -> None:
    with sandbox.change("switch model", inventory=False) as change:
        assert change.state is S.CHANGING
        sandbox.filesystem.write("/workspace/model", "new")
        assert change.verdict is None
    assert (change.state, change.verdict) == (S.KEPT, "kept")
    assert change.check() is change
    assert "is kept" in str(change.report)
    assert change.report is not None
    assert change.report.headline.endswith("1 required check passes, as before the change")
    assert sandbox.filesystem.read("/workspace/model") == b"new"
    assert [c.id for c in sandbox.changes()] == [change.id]
    assert Change.get(change.id).info == change.info
    assert repr(change) == f"<Change {change.id} kept>"


def test_a_block_whose_checks_fail_is_rolled_back_and_the_object_goes_on(sandbox: Sandbox) -> None:
    SCRIPT["after"] = ["fail"]
    sandbox.filesystem.write("/workspace/model", "old")
    with sandbox.change("switch model", inventory=False, target="model x") as change:
        sandbox.filesystem.write("/workspace/model", "new")
    assert (change.state, change.verdict) == (S.ROLLED_BACK, "rolled_back")
    with pytest.raises(ChangeRolledBack, match="rolled back"):
        change.check()
    assert sandbox.filesystem.read("/workspace/model") == b"old"
    assert sandbox.exec("echo on").stdout == "on\n"
    with pytest.raises(Conflict, match="rolled back before"), sandbox.change("x", target="Model X"):
        pytest.fail("it was begun")
    failed = change.info.failed_snapshot_id
    assert failed is not None
    with Sandbox.restore(failed) as copy:
        assert copy.filesystem.read("/workspace/model") == b"new"
    sandbox.rollback(failed)
    assert sandbox.filesystem.read("/workspace/model") == b"new"


@pytest.mark.parametrize("error", [CommandFailed, KeyboardInterrupt, SystemExit])
def test_an_exception_undoes_the_block_and_is_raised_on(
    sandbox: Sandbox, error: type[BaseException]
) -> None:
    seen: list[Change] = []

    def work() -> None:
        with sandbox.change("switch model", inventory=False) as change:
            seen.append(change)
            sandbox.filesystem.write("/workspace/model", "new")
            if error is CommandFailed:
                sandbox.exec("exit 3", check=True)
            raise error

    with pytest.raises(error):
        work()
    assert seen[0].verdict == "rolled_back"
    assert seen[0].info.ending == "client"
    assert error.__name__ in seen[0].why
    with pytest.raises(NotFound):
        sandbox.filesystem.read("/workspace/model")


def test_a_second_ctrl_c_does_not_wait_until_it_is_undone(
    sandbox: Sandbox, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_changes, "INTERRUPTED_S", 0.2)
    main = threading.main_thread().ident
    assert main is not None
    real = server.engine.rollback
    gates: list[asyncio.Event] = []

    async def slow(*args: Any, **kwargs: Any) -> Any:
        gates.append(asyncio.Event())
        signal.pthread_kill(main, signal.SIGINT)
        await gates[0].wait()
        return await real(*args, **kwargs)

    monkeypatch.setattr(server.engine, "rollback", slow)
    seen: list[Change] = []

    def work() -> None:
        with sandbox.change("switch model", inventory=False) as change:
            seen.append(change)
            raise CommandFailed("the first one")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen[0].refresh().state is S.ROLLING_BACK

    async def let_go() -> None:
        gates[0].set()

    server.run(let_go())
    ended = Change.get(seen[0].id).wait()
    assert (ended.verdict, ended.info.ending) == ("rolled_back", "client")


def test_a_block_with_a_probation_ends_when_that_begins(sandbox: Sandbox) -> None:
    with sandbox.change("x", inventory=False, probation_seconds=600) as change:
        pass
    assert (change.state, change.verdict) == (S.PROBATION, None)
    assert change.check() is change
    assert change.confirm(by="me").verdict == "kept"
    with sandbox.change("y", inventory=False, probation_seconds=600) as change:
        pass
    assert change.rollback("no good").why.endswith("no good")
    with pytest.raises(WrongState):
        change.rollback()


def test_a_command_in_python(sandbox: Sandbox) -> None:
    seen: list[str] = []
    change = sandbox.change("x", run="echo one", inventory=False)
    with pytest.raises(TorporError, match="not begun"):
        _ = change.id
    assert "not begun" in repr(change)
    change.wait(lambda event: seen.append(event.name))
    assert change.verdict == "kept"
    assert {"state", "step", "output", "check"} <= set(seen)
    with pytest.raises(InvalidRequest, match="makes itself"), sandbox.change("x", run="true"):
        pytest.fail("it was entered")
    with pytest.raises(InvalidRequest, match="with block"):
        sandbox.change("x").wait()
    with pytest.raises(WrongState):
        change.start()


@pytest.mark.parametrize("form", ["path", "text", "mapping"])
def test_checks_in_three_forms(sandbox: Sandbox, tmp_path: Path, form: str) -> None:
    content = {"required": {"file": {"/etc/hostname": {"exists": True}}}}
    file = tmp_path / "checks.yaml"
    file.write_text(json.dumps(content))
    checks = {"path": file, "text": file.read_text(), "mapping": content}[form]
    change = sandbox.change("x", run="true", inventory=False, checks=checks).wait()  # type: ignore[arg-type]
    assert change.verdict == "kept"
    assert change.report is not None
    source = str(file) if form == "path" else "checks"
    assert change.report.data["asked"]["checks_source"] == source
    with pytest.raises(NotFound, match="there is no checks file"):
        sandbox.change("x", run="true", checks=tmp_path / "none.yaml").start()
    with pytest.raises(NotFound, match="there is no checks file none"):
        sandbox.change("x", run="true", checks="none").start()
    with pytest.raises(InvalidRequest, match="no checks file can"):
        sandbox.change("x", run="true", checks={"required": tmp_path}).start()
    with pytest.raises(InvalidRequest, match=r"profile .* cannot be read"):
        sandbox.change("x", run="true", profile=tmp_path / "none.yaml").start()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("required:\n  file: 3\n")
    with pytest.raises(InvalidRequest, match=rf"{wrong}:2"):
        sandbox.change("x", run="true", checks=wrong).start()


def test_a_block_that_cannot_begin_says_why(sandbox: Sandbox) -> None:
    SCRIPT["before"] = ["dead"]
    with (
        pytest.raises(ChangeFailed, match="could not be begun"),
        sandbox.change("x", inventory=False),
    ):
        pytest.fail("it was entered")


def test_the_asynchronous_face(server: ServerThread) -> None:
    async def main() -> None:
        sandbox = await AsyncSandbox.create()
        async with sandbox.change("x", inventory=False) as change:
            await sandbox.filesystem.write("/workspace/x", "1")
        assert change.verdict == "kept"
        with pytest.raises(ZeroDivisionError):
            async with sandbox.change("y", inventory=False) as change:
                raise ZeroDivisionError
        assert change.verdict == "rolled_back"
        started = asyncio.Event()

        async def cancelled() -> None:
            nonlocal change
            async with sandbox.change("z", inventory=False) as change:
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(cancelled())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (change.verdict, change.info.ending) == ("rolled_back", "client")
        assert [c.state for c in await sandbox.changes()] == [S.ROLLED_BACK, S.ROLLED_BACK, S.KEPT]
        assert (await AsyncChange.get(change.id)).why == "CancelledError"

    asyncio.run(main())


def test_a_client_that_dies_in_its_block(sandbox: Sandbox) -> None:
    code = f"""
import os
from torpor import Sandbox
with Sandbox.handle({sandbox.id!r}).change("x", inventory=False, lease_seconds=5) as change:
    print(change.id, flush=True)
    input()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    change_id = process.stdout.readline().strip()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    ended = Change.get(change_id).wait()
    assert (ended.verdict, ended.info.ending) == ("rolled_back", "client")


# ---- the command line ----


def test_a_change_on_the_command_line(cli: Cli, sandbox: Sandbox, tmp_path: Path) -> None:
    checks = tmp_path / "checks.yaml"
    checks.write_text("required: {file: {/etc/hostname: {exists: true}}}\n")
    out = cli(
        "change", "hermes-1", "update hermes to 0.19", "--run", "echo updated", "--checks", str(checks),
        "--no-inventory", "--target", "hermes 0.19",
    )  # fmt: skip
    (info,) = cli.json("changes", "hermes-1")
    assert f"Change {info['id']} (update hermes to 0.19) is kept" in out.replace("\n", " ")
    assert "updated" in cli_err(
        cli, "change", "hermes-1", "again", "--run", "echo updated", "--no-inventory"
    )
    assert "verifying" in cli.stderr
    assert "  idle\n" not in cli.stderr
    assert "required/command:ready" in cli.stderr
    lines = cli("changes").splitlines()
    assert lines[0].split() == ["ID", "SANDBOX", "STATE", "VERDICT", "BY", "AGE", "REASON"]
    assert cli("changes", "--open") == ""


def cli_err(cli: Cli, *args: str) -> str:
    cli(*args)
    return cli.stderr


def test_exit_codes_say_what_became_of_it(cli: Cli, sandbox: Sandbox, tmp_path: Path) -> None:
    cli("change", sandbox.id, "x", "--run", "exit 3", "--no-inventory", "--target", "t", code=96)
    cli.fails("change", sandbox.id, "x", "--run", "true", "--target", "T", code=73)
    assert "--force" in cli.stderr
    cli("change", sandbox.id, "x", "--run", "true", "--target", "T", "--force", "--no-inventory")
    SCRIPT["before"] = ["dead"]
    cli("change", sandbox.id, "x", "--run", "true", "--no-inventory", code=97)
    cli.fails("change", sandbox.id, "x", "--run", "true", "--probation", "soon", code=64)
    cli.fails("change", sandbox.id, "x", "--run", "true", "--consistency", "so-so", code=64)
    cli.fails("change", "nobody", "x", "--run", "true", code=66)
    cli.fails("change", sandbox.id, "x", "--run", "true", "--profile", "nobody", code=66)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("required:\n  file: 3\n")
    told = cli.fails("change", sandbox.id, "x", "--run", "true", "--checks", str(wrong), code=64)
    assert f"{wrong}:2:9" in told
    cli("change", sandbox.id, "x", code=2)
    told = cli.fails("change", sandbox.id, "x", "--run", "true", "--consistency", "best", code=64)
    assert "--consistency 'best' is not known" in told


def test_confirming_and_rejecting(cli: Cli, sandbox: Sandbox) -> None:
    args = ("--run", "true", "--probation", "10m", "--no-inventory", "--detach")
    change = cli("change", sandbox.id, "x", *args).strip()
    until(change, S.PROBATION)
    assert "confirm" in cli("report", change)
    assert cli("confirm", "hermes-1") == f"{change}  kept: confirmed by {me()}\n"
    cli.fails("confirm", change, code=65)
    change = cli.json("change", sandbox.id, "x", *args)["id"]
    cli.fails("change", sandbox.id, "y", "--run", "true", code=73)
    until(change, S.PROBATION)
    told = cli("change", "rollback", change[:12], "--why", "no good")
    assert told == f"{change}  rolled_back: rejected by {me()}: no good\n"
    cli.fails("change", "rollback", change, code=65)
    cli.fails("confirm", "chg_none", code=66)
    assert cli("change", "follow", change, code=96) == cli("report", change)


def test_rejecting_one_that_has_not_begun_is_no_failure(
    cli: Cli, sandbox: Sandbox, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, settle = server.engine.snapshot, ChangeDesk._settled
    said = asyncio.Event()

    async def held(*args: Any, **kwargs: Any) -> Any:
        await said.wait()
        return await take(*args, **kwargs)

    async def settled(*args: Any) -> Any:
        said.set()
        return await settle(*args)

    monkeypatch.setattr(server.engine, "snapshot", held)
    monkeypatch.setattr(ChangeDesk, "_settled", settled)
    change = cli("change", sandbox.id, "x", "--run", "true", "--no-inventory", "--detach").strip()
    told = cli("change", "rollback", change)
    assert told == f"{change}  failed: rejected by {me()}; nothing was changed\n"
    report = cli("report", change)
    assert "torpor restore snap_" in report
    assert "torpor rollback" not in report, "there is nothing to put back"


def test_reports_on_the_command_line(cli: Cli, sandbox: Sandbox, tmp_path: Path) -> None:
    SCRIPT["after"] = ["fail"]
    cli("change", sandbox.id, "x", "--run", "echo a; err b", "--no-inventory", code=96)
    text = cli("report", "hermes-1")
    assert "Checks, before and after" in text
    assert "Not undone" in text
    assert "torpor restore snap_" in text
    assert all(len(line) <= 130 for line in text.splitlines())
    page = tmp_path / "report.html"
    assert cli("report", "hermes-1", "--html", str(page)) == f"{page}\n"
    assert page.read_text().startswith("<!doctype html>")
    assert cli.json("report", "hermes-1")["change"]["state"] == "rolled_back"
    cli.fails("report", "hermes-1", "--html", str(tmp_path / "no" / "where"), code=64)
    Sandbox.create(metadata={"name": "new"})
    cli.fails("report", "new", code=66)


def test_ctrl_c_leaves_the_change_to_the_daemon(sandbox: Sandbox) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "torpor.cli", "change", sandbox.id, "x", "--run", "sleep 2", "--no-inventory"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "running: sleep" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    (change,) = sandbox.changes()
    assert f"note: change {change.id} goes on in the daemon" in err
    assert f"torpor change rollback {change.id}" in err
    assert change.wait().verdict == "kept"


def test_names_of_sandboxes(cli: Cli, sandbox: Sandbox) -> None:
    made = cli("create", "base", "--name", "openclaw").strip()
    assert cli.json("get", "openclaw")["id"] == made
    cli.fails("create", "base", "--name", "Not A Name", code=64)
    Sandbox.create(metadata={"name": "openclaw"})
    assert "can be any of" in cli.fails("get", "openclaw", code=64)


def until(change_id: str, state: ChangeState) -> None:
    pause = threading.Event()
    for _ in range(500):
        if Change.get(change_id).state is state:
            return
        pause.wait(0.02)
    raise AssertionError(f"{change_id} never was {state}")


def me() -> str:
    import getpass

    return getpass.getuser()
