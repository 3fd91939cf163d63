"""Checks over REST, in Python and on the command line, with a fake machine."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.conftest import Rest
from tests.contract.api.test_cli import Cli
from tests.fakes.serving import ServerThread
from torpor import AsyncSandbox, Sandbox
from torpor.errors import (
    CheckFailed,
    HostNotReady,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    WrongState,
)
from torpor.model_checks import CheckReport, CheckResult
from torpor.model_inventory import Entry
from torpor.recovery.checks import parse_checks, turn_of
from torpor.recovery.profiles import shipped

GOOD = "required: {command: {echo all is well: {stdout: [well]}}}\n"
MIXED = """
required:
  command:
    "true": {}
    "false": {title: It works}
wanted:
  command:
    exit 3: {}
"""
HANGS = "required: {command: {mark hung; sleep 600: {timeoutSeconds: 600}}}"


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def sandbox(server: ServerThread) -> str:
    return Sandbox.create().id


def url(sandbox: str, rest: str = "") -> str:
    return f"/v1/sandboxes/{sandbox}/checks{rest}"


def test_rest_answers_with_the_report(rest: Rest, sandbox: str) -> None:
    body = rest.ok("POST", url(sandbox), json={"checks": GOOD, "source": "mine.yaml"})
    report = CheckReport.from_json(body)
    assert (report.verdict, report.source, report.sandbox_id) == ("pass", "mine.yaml", sandbox)
    assert report.results[0].output == "all is well"
    failed = rest.ok("POST", url(sandbox), json={"checks": MIXED})
    assert (failed["verdict"], failed["status"]) == ("fail", "fail")
    assert [check["status"] for check in failed["checks"]] == ["pass", "fail", "warn"]


def test_rest_streams_results(rest: Rest, sandbox: str) -> None:
    events = rest.events("POST", url(sandbox, "/stream"), json={"checks": MIXED})
    assert [name for name, _ in events] == ["started", "result", "result", "result", "report"]
    assert events[0][1] == {"checks": 3}
    report = CheckReport.from_json(events[-1][1])
    assert {CheckResult.from_json(data) for name, data in events if name == "result"} == set(
        report.results
    )


@pytest.mark.parametrize("rest_of_url", ["", "/stream"])
def test_bad_requests(rest: Rest, sandbox: str, rest_of_url: str) -> None:
    at = url(sandbox, rest_of_url)
    bad = rest.fails("POST", at, 400, "request.invalid", json={"checks": "required:\n  fil: {}"})
    assert bad["error"].startswith("checks.yaml:2:3: ")
    assert bad["hint"] == "did you mean 'file'?"
    rest.fails("POST", at, 400, "request.invalid", json={})
    rest.fails("POST", at, 400, "request.invalid", json={"checks": GOOD, "source": "a\nb"})
    rest.fails("POST", at, 400, "request.invalid", json={"checks": GOOD, "within_seconds": 0})
    rest.fails("POST", at, 400, "request.invalid", json={"checks": GOOD, "profile": "/etc/x.yaml"})
    rest.fails("POST", at, 404, "object.not_found", json={"checks": GOOD, "profile": "nobody"})
    rest.fails("POST", at, 413, "request.limit_exceeded", json={"checks": "#" * 300_000})
    unknown = at.replace(sandbox, "sbx_00000000000000000000")
    rest.fails("POST", unknown, 404, "object.not_found", json={"checks": GOOD})
    Sandbox.pause(sandbox)
    rest.fails("POST", at, 409, "object.wrong_state", json={"checks": GOOD})


def test_hanging_up_ends_what_runs_in_the_machine(
    rest: Rest, server: ServerThread, sandbox: str
) -> None:
    guest = server.engine.sandboxes[sandbox].guest  # type: ignore[index]
    with rest.http.stream(
        "POST", url(sandbox, "/stream"), json={"checks": f"folders: false\n{HANGS}"}
    ):
        server.run(_until(lambda: guest.marks["hung"] == 1))
    server.run(_until(lambda: all(found.state == "exited" for found in guest.execs.values())))
    assert [found.signal for found in guest.execs.values()] == [9]


async def _until(is_so: Any) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


def test_python(sandbox: str, tmp_path: Path) -> None:
    sbx = Sandbox.get(sandbox)
    path = tmp_path / "my checks.yaml"
    path.write_text(GOOD)
    seen: list[CheckResult] = []
    report = sbx.check(path, on_result=seen.append)
    assert (report.verdict, report.source, report.results) == (
        "pass",
        str(path),
        tuple(seen),
    )
    assert sbx.check(str(path)).verdict == "pass"
    assert sbx.check(GOOD).source == "checks"
    assert Sandbox.check(sandbox, {"required": {"command": {"true": {}}}}).verdict == "pass"
    one: dict[str, object] = {}
    twice = {"required": {"command": {"true": one, "echo \U0001f40c": one}}}
    assert sbx.check(twice).verdict == "pass"
    with pytest.raises(InvalidRequest, match="no checks file can"):
        sbx.check({"required": path})
    with pytest.raises(CheckFailed, match="required/command:false"):
        sbx.check(MIXED).check()
    with pytest.raises(NotFound, match="there is no checks file nowhere"):
        sbx.check("nowhere.yaml")
    with pytest.raises(InvalidRequest, match=r"checks:1:1: .*'nothing'"):
        sbx.check("nothing: {}\n")
    with pytest.raises(LimitExceeded):
        sbx.check(GOOD + "#" * 300_000)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        sbx.check(tmp_path / "binary.yaml")
    with pytest.raises(InvalidRequest, match=r"cannot be read: Is a directory$"):
        sbx.check(tmp_path)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        sbx.check("\0.yaml")
    sbx.pause()
    with pytest.raises(WrongState):
        sbx.check(GOOD)


def test_python_asynchronously(sandbox: str) -> None:
    async def run() -> None:
        sbx = await AsyncSandbox.get(sandbox)
        both = await asyncio.gather(sbx.check(GOOD), AsyncSandbox.check(sandbox, MIXED))
        assert [report.verdict for report in both] == ["pass", "fail"]
        with pytest.raises(InvalidRequest):
            await sbx.check_init()

    asyncio.run(run())


def test_a_cancelled_call_ends_the_run(server: ServerThread, sandbox: str) -> None:
    guest = server.engine.sandboxes[sandbox].guest  # type: ignore[index]

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await AsyncSandbox.check(sandbox, f"folders: false\n{HANGS}")

    asyncio.run(run())
    server.run(_until(lambda: all(found.state == "exited" for found in guest.execs.values())))
    assert guest.marks["hung"] == 1


def test_a_machine_that_sleeps_is_woken(sandbox: str) -> None:
    Sandbox.hibernate(sandbox)
    assert Sandbox.check(sandbox, GOOD).verdict == "pass"


def survey(**found: Any) -> bytes:
    empty: dict[str, Any] = {
        "services": [],
        "ports": [],
        "packages": [],
        "files": [],
        "databases": [],
        "notes": [],
    }
    return json.dumps(empty | found).encode()


def prepare(server: ServerThread, sandbox: str, **found: Any) -> None:
    answers = server.engine.sandboxes[sandbox].guest.answers  # type: ignore[index]
    answers["walk_seconds"] = survey(**found)
    answers["sqlite_master"] = json.dumps(
        {"problems": [], "schema": "a" * 64, "rows": {"t": 4, "none": 0}, "queries": {}}
    ).encode()


def test_init_keeps_what_passes(
    server: ServerThread, rest: Rest, sandbox: str, cli: Cli, tmp_path: Path
) -> None:
    prepare(
        server,
        sandbox,
        databases=["/home/agent/state.db", "bad\x07name", 7],
        services=[{"name": "gone", "restarts": 0}, "nonsense"],
        ports=[{"port": 0, "program": "python3.13"}, {"port": 70000, "program": "my-agent"}],
        notes=["/srv was not looked through to its end"],
    )
    body = rest.ok("POST", url(sandbox, "/init"))
    plan = parse_checks(body["checks"], source="t")
    assert [(check.kind, check.name) for check in plan.checks] == [
        ("sqlite", "/home/agent/state.db")
    ]
    assert plan.timing.timeout_seconds == 30, "all run at once, which is slow on a slow machine"
    kinds = [told.partition(": ")[0] for told in body["left_out"]]
    assert sorted(kinds) == ["required/process:my-agent", "required/service:gone"]
    assert "# left out, for it does not pass now: required/service:gone" in body["checks"]
    assert "# /srv was not looked through to its end" in body["checks"]
    path = tmp_path / "checks.yaml"
    assert cli("check", "init", sandbox, "-o", str(path)) == f"{path}\n"
    assert path.read_text() == body["checks"]
    assert cli.json("check", "run", sandbox, "-c", str(path))["verdict"] == "pass"
    cli.fails("check", "init", sandbox, "-o", str(path), code=73)
    cli("check", "init", sandbox, "-o", str(path), "--force")
    assert cli("check", "init", sandbox) == body["checks"]


def test_init_with_the_turn_of_a_profile(server: ServerThread, sandbox: str) -> None:
    prepare(server, sandbox, databases=["/home/agent/state.db"])
    text = Sandbox.check_init(sandbox, profile="hermes")
    kinds = {check.kind for check in parse_checks(text, source="t").checks}
    assert kinds == {"sqlite", "turn"}


def test_init_where_there_is_nothing(server: ServerThread, rest: Rest, sandbox: str) -> None:
    rest.fails("POST", url(sandbox, "/init"), 400, "request.invalid")
    prepare(server, sandbox)
    told = rest.fails("POST", url(sandbox, "/init"), 400, "request.invalid")
    assert told["error"].startswith("nothing was found in the machine")


def test_the_command_line(cli: Cli, sandbox: str, tmp_path: Path) -> None:
    path = tmp_path / "checks.yaml"
    path.write_text(GOOD)
    lines = cli("check", "run", sandbox, "--checks", str(path)).splitlines()
    assert lines[0].startswith("pass         required command echo all is well ")
    assert lines[-1] == "pass: 1 of 1 required checks pass"
    path.write_text(MIXED)
    text = cli("check", "run", sandbox, "-c", str(path), code=90)
    assert (
        "required/command:false - It works\n    exit-status\n        wanted  0\n        found   1\n"
        in text
    )
    assert text.endswith("\nfail: 1 of 2 required checks pass, 1 warned\n")
    report = cli.json("check", "run", sandbox, "-c", str(path), code=90)
    assert CheckReport.from_json(report).verdict == "fail"
    path.write_text("required: {command: {exit 3: {nagios: true}}}")
    assert "could not be told" in cli("check", "run", sandbox, "-c", str(path), code=91)
    path.write_text("required:\n  file: {x: }\n")
    said = cli.fails("check", "run", sandbox, "-c", str(path), code=64)
    assert said.startswith(f"error: {path}:2:10: ")
    cli.fails("check", "run", sandbox, "-c", str(tmp_path / "none.yaml"), code=66)


def test_the_command_line_reads_stdin_and_writes_junit(
    cli: Cli, sandbox: str, tmp_path: Path
) -> None:
    junit = tmp_path / "checks.xml"
    cli("check", "run", sandbox, "-c", "-", "--junit", str(junit), stdin=MIXED, code=90)
    suite = ET.parse(junit).getroot()[0]
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("3", "1")
    cli("check", "run", sandbox, "-c", "-", stdin=GOOD.strip())
    nowhere = str(tmp_path / "no" / "x.xml")
    cli.fails("check", "run", sandbox, "-c", str(tmp_path / "x.yaml"), "--junit", nowhere, code=64)


def test_what_a_machine_says_does_not_steer_the_terminal(cli: Cli, sandbox: str) -> None:
    digits = base64.b16encode(b"\x1b[2J\x1b]0;x\x07").decode()
    text = cli(
        "check",
        "run",
        sandbox,
        "-c",
        "-",
        stdin=f"required: {{command: {{hex {digits}: {{stdout: [a]}}}}}}",
        code=90,
    )
    assert "\x1b" not in text
    assert "\\x1b[2J" in text


SKILLS = "required: {inventory: {skills: superset}}"


def test_inventory_checks_compare_with_where_it_last_was(
    rest: Rest, server: ServerThread, sandbox: str, cli: Cli
) -> None:
    guest = server.engine.sandboxes[sandbox].guest  # type: ignore[index]
    nothing = Sandbox.check(sandbox, SKILLS).results[0]
    assert (nothing.outcome, "no inventory from before" in nothing.reason) == ("inconclusive", True)
    old = Sandbox.snapshot(sandbox, label="old").id
    guest.held["skills"]["more"] = Entry(name="more")
    assert Sandbox.check(sandbox, SKILLS).verdict == "pass"
    Sandbox.snapshot(sandbox)
    del guest.held["skills"]["more"]
    lost = Sandbox.check(sandbox, SKILLS).results[0]
    assert (lost.outcome, lost.reason.rpartition(": ")[2]) == ("fail", "-more")
    assert Sandbox.check(sandbox, SKILLS, baseline=old).verdict == "pass"
    cli("check", "run", sandbox, "-c", "-", "--baseline", f"{sandbox}@old", stdin=SKILLS)
    for wrong, status, code in (
        ("nonsense", 400, "request.invalid"),
        ("snap_00000000000000000000", 404, "object.not_found"),
    ):
        rest.fails("POST", url(sandbox), status, code, json={"checks": SKILLS, "baseline": wrong})
    guest.inventory_error = HostNotReady("the agent in the machine is too old")
    assert Sandbox.check(sandbox, GOOD).verdict == "pass"


def test_a_turn_of_the_profile_that_fits(server: ServerThread, sandbox: str) -> None:
    guest = server.engine.sandboxes[sandbox].guest  # type: ignore[index]
    command = turn_of(shipped("hermes")).command  # type: ignore[union-attr]
    guest.answers["hermes chat"] = b"what?"
    text = "required: {turn: {answers: {stdout: [what]}}}"
    assert Sandbox.check(sandbox, text).verdict == "pass"
    assert [found.spec.command for found in guest.dropped][-1] == command
    guest.fits = ()
    nobody = Sandbox.check(sandbox, text).results[0]
    assert (nobody.outcome, "nor an agent profile" in nobody.reason) == ("inconclusive", True)


def test_several_at_once(sandbox: str) -> None:
    verdicts: list[str] = []
    threads = [
        threading.Thread(target=lambda: verdicts.append(Sandbox.check(sandbox, GOOD).verdict))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == ["pass"] * 4
