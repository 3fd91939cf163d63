"""Checks in a real machine with a small agent in it: a first file passes, each damage is seen, nothing is left."""

from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torpor import AsyncSandbox, Sandbox
from torpor.base.home import Home
from torpor.cli.app import app
from torpor.model_checks import CheckReport
from torpor.recovery.checks import judge, parse_checks

UNIT = """\
[Unit]
Description=A small agent
[Service]
ExecStart=/usr/bin/python3 -m http.server 8080 --bind 127.0.0.1 --directory /workspace/site
User=agent
[Install]
WantedBy=multi-user.target
"""
SET_UP = f"""
set -e
mkdir -p /workspace/site
echo ok > /workspace/site/health
cat > /etc/systemd/system/small-agent.service <<'END'
{UNIT}END
cat > /home/agent/make.py <<'END'
import sqlite3
db = sqlite3.connect("/home/agent/state.db")
db.execute("PRAGMA journal_mode = WAL")
db.execute("CREATE TABLE sessions (id INTEGER PRIMARY KEY, title TEXT)")
db.executemany("INSERT INTO sessions (title) VALUES (?)", [("s%d" % n,) for n in range(300)])
db.commit()
END
chown agent:agent /home/agent
su agent -c 'python3 /home/agent/make.py && rm /home/agent/make.py && echo "model: small" > /home/agent/config.yaml'
systemctl daemon-reload
systemctl enable --now small-agent
for n in $(seq 100); do curl -fs http://127.0.0.1:8080/health && exit 0; sleep 0.2; done
exit 1
"""
LEFTOVERS = (
    "find /tmp /var/tmp /root /home /etc /run/torpor /workspace -xdev "
    "\\( -type d -printf '%p %m %U\\n' -o -printf '%p %m %U %s %T@\\n' \\) | sort; "
    # udev's workers come and go by themselves
    "ps --ppid 2 -p 2 --deselect -o comm= | grep -v udev-worker | sort | uniq -c"
)
DAMAGE = """
systemctl disable --now small-agent 2>/dev/null
rm /home/agent/config.yaml
su agent -c "python3 -c 'import sqlite3; c = sqlite3.connect(\\"/home/agent/state.db\\"); c.execute(\\"DELETE FROM sessions\\"); c.commit()'"
chmod 000 /usr/bin/less
dpkg --remove --force-depends --force-remove-essential less 2>&1
true
"""
MORE = """
required:
  http:
    http://127.0.0.1:8080/health: {body: [ok], timeoutSeconds: 30}
  package:
    less: {installed: true, timeoutSeconds: 30}
  command:
    "grep -q small /home/agent/config.yaml": {user: agent, timeoutSeconds: 30}
"""


@pytest.fixture(scope="module")
def machine(base: str, vm_home: Home) -> Iterator[Sandbox]:
    """A machine with a small agent: a web service, a database and its configuration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORPOR_HOME", str(vm_home.root))
        sandbox = Sandbox.create(template=base, network="none")
        try:
            sandbox.exec(SET_UP, user="root", check=True, timeout_seconds=300)
            yield sandbox
        finally:
            sandbox.delete()


def outcomes(report: CheckReport) -> dict[str, str]:
    return {result.key: result.outcome for result in report.results}


def cli(*args: str, code: int) -> str:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == code, result.output
    return result.stdout


def test_a_first_file_passes_and_each_damage_is_seen(machine: Sandbox, tmp_path: Path) -> None:
    before = machine.exec(LEFTOVERS, user="root", check=True).stdout
    first = tmp_path / "checks.yaml"
    cli("check", "init", machine.id, "-o", str(first), code=0)
    text = first.read_text()
    found = {f"{check.kind}:{check.name}" for check in parse_checks(text, source="t").checks}
    assert {
        "service:small-agent", "port:tcp:8080", "sqlite:/home/agent/state.db",
        "file:/home/agent/config.yaml", "file:/etc/systemd/system/small-agent.service",
    } <= found, text  # fmt: skip
    assert "process:python3" not in found, "the machine's own agent has that name too"
    assert "/torpor-" not in text, "our own units are not the user's configuration"
    assert "left out" not in text
    junit = tmp_path / "checks.xml"
    said = cli("check", "run", machine.id, "-c", str(first), "--junit", str(junit), code=0)
    assert said.splitlines()[-1].startswith("pass: ")
    assert ET.parse(junit).getroot()[0].attrib["failures"] == "0"
    more = machine.check(MORE)
    assert more.verdict == "pass", more
    after = machine.exec(LEFTOVERS, user="root", check=True).stdout
    assert after == before, "something was left in the machine, or changed"

    machine.exec(DAMAGE, user="root", timeout_seconds=120)
    report = CheckReport.from_json(
        json.loads(cli("check", "run", machine.id, "-c", str(first), "--json", code=90))
    )
    said_of = outcomes(report)
    for key in (
        "service:small-agent", "port:tcp:8080", "sqlite:/home/agent/state.db",
        "file:/home/agent/config.yaml",
    ):  # fmt: skip
        assert said_of[f"required/{key}"] == "fail", (key, said_of)
    assert said_of["required/file:/etc/systemd/system/small-agent.service"] == "pass"
    rows = next(r for r in report.results if r.kind == "sqlite")
    assert "rows of sessions: found 0; wanted ge 1" in rows.reason
    damaged = machine.check(MORE)
    assert set(outcomes(damaged).values()) == {"fail"}
    assert judge(more, damaged).verdict == "fail"
    assert judge(damaged, damaged).verdict == "inconclusive"


def test_a_hang_ends_at_its_limit_and_leaves_no_process(machine: Sandbox) -> None:
    report = machine.check(
        """
required:
  command:
    "sleep 987 & sleep 987": {timeoutSeconds: 2}
    "kill -STOP $$": {timeoutSeconds: 2}
"""
    )
    assert [result.outcome for result in report.results] == ["fail", "fail"]
    assert "did not end within 2 s" in report.results[0].reason
    assert machine.exec("pgrep -f '[s]leep 987'").exit_code == 1


def test_a_caller_that_leaves_ends_what_runs(machine: Sandbox) -> None:
    text = 'required: {command: {"touch /tmp/begun; sleep 986": {timeoutSeconds: 300}}}'

    async def run() -> None:
        there = await AsyncSandbox.get(machine.id)
        running = asyncio.create_task(there.check(text))
        begun = "for n in $(seq 600); do test -e /tmp/begun && exit 0; sleep 0.1; done; exit 1"
        await there.exec(begun, check=True)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(run())
    machine.exec("rm /tmp/begun", user="root", check=True)
    gone = "for n in $(seq 100); do pgrep -f '[s]leep 986' >/dev/null || exit 0; sleep 0.1; done; exit 1"
    machine.exec(gone, check=True)


def test_plugins_in_the_machine_and_a_turn(machine: Sandbox) -> None:
    machine.exec(
        """
        mkdir -p /etc/torpor/checks/required.d /etc/torpor/checks/wanted.d
        printf '#!/bin/sh\\necho "OK | pi=3.14"\\n' > /etc/torpor/checks/required.d/fine
        printf '#!/bin/sh\\necho "WARNING: nearly"; exit 1\\n' > /etc/torpor/checks/wanted.d/soon
        chmod 755 /etc/torpor/checks/*.d/*
        """,
        user="root",
        check=True,
    )
    report = machine.check(
        """
required:
  turn:
    well: {exec: 'echo "ready, $(id -un)"', user: agent, stdout: ["ready, agent"]}
    away: {exec: 'echo rate limit >&2; exit 1', outage: {output: [/rate.limit/]}}
    broken: {exec: 'exit 1', control: {command: "true"}}
"""
    )
    machine.exec("rm -r /etc/torpor/checks", user="root", check=True)
    assert outcomes(report) == {
        "required/turn:well": "pass",
        "required/turn:away": "inconclusive",
        "required/turn:broken": "fail",
        "required/executable:fine": "pass",
        "wanted/executable:soon": "fail",
    }
    assert report.results[3].measurements[0].value == 3.14
