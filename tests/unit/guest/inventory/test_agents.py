"""The three agents' layouts: what is listed, what a change of it says, and that no secret is in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.secrets_in import assert_no_secret
from tests.unit.guest.inventory.machine import SECRETS, Machine, agent_zero, hermes, openclaw
from torpor.recovery.inventory.plan import signs_of
from torpor.recovery.profiles import shipped_names
from torpor_guest.inventory import content
from torpor_guest.inventory.worker import Taker

LAYOUTS = {"hermes": hermes, "agent-zero": agent_zero, "openclaw": openclaw}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(content, "_FRESH_NS", 0)  # nobody else writes to the tree meanwhile
    return Machine(tmp_path / "root")


def _fits(machine: Machine) -> list[str]:
    request = {"profiles": signs_of(shipped_names()), "deadline_s": 5}
    return list(machine.taker.detect(request)["fits"])


def test_every_machine(machine: Machine) -> None:
    found = machine.take()
    assert {e.name: e.shown["version"] for e in found.entries("debian").values()} == {
        "libc6:amd64": "2.36",
        "libc6:i386": "2.36",
        "openssl": "3.0.1",
    }
    assert {e.name: e.shown["version"] for e in found.entries("python").values()} == {
        "foo-bar (/usr)": "1.0rc1",
        "old (/usr)": None,
        "requests (/usr)": "2.31.0",
    }
    assert {e.name: e.shown["version"] for e in found.entries("npm").values()} == {
        "@a/b (/usr/lib/node_modules)": "0.1.0",
        "npm (/usr/lib/node_modules)": "10.1.0",
    }
    cron = found.entries("cron")
    assert list(cron) == [
        "/etc/crontab: /opt/start",
        "/etc/crontab: MAILTO=",
        "/etc/crontab: PATH=",
        "/etc/crontab: run-parts",
        "/var/spool/cron/crontabs/agent: curl",
    ]
    assert cron["/etc/crontab: run-parts"].shown == {"schedule": "17 * * * *", "user": "root"}
    assert cron["/etc/crontab: /opt/start"].shown["schedule"] == "@reboot"
    assert set(cron["/etc/crontab: /opt/start"].hidden) == {"command"}
    timer = found.entries("timers")["a.timer"]
    assert (dict(timer.shown), set(timer.hidden)) == (
        {"OnCalendar": "daily", "enabled": False},
        {"Persistent"},
    )
    assert found.entries("users")["agent"].shown == {
        "group": "agent",
        "groups": "sudo",
        "home": "/home/agent",
        "shell": "/bin/sh",
        "uid": 1000,
    }
    assert set(found.entries("env")) == {"/etc/environment: DB_PASSWORD", "/etc/environment: PATH"}
    assert not found.sections["units"].is_complete, "there is no systemd to ask"
    assert _fits(machine) == []
    assert_no_secret(json.dumps(found.to_json()), SECRETS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_agent_is_known_and_keeps_its_secrets(machine: Machine, name: str) -> None:
    LAYOUTS[name](machine)
    assert _fits(machine) == [name]
    found = machine.take(name)
    for kind in ("skills", "models", "jobs", "memory", "versions"):
        assert found.entries(kind), kind
    assert_no_secret(json.dumps(found.to_json()), SECRETS)
    assert found.sections["jobs"].notes == ()
    assert found.diff(machine.take(name)).is_empty
    assert machine.end["cache"]["misses"] == 0, "a second look reads nothing again"


def test_hermes(machine: Machine) -> None:
    home = hermes(machine)
    found = machine.take("hermes")
    assert list(found.entries("skills")) == ["mail", "notes", "web/search"]
    assert found.entries("skills")["mail"].shown == {"files": 2, "size_bytes": 15}
    assert set(found.entries("tools")) == {"web", "files", "terminal", "github"}
    assert found.entries("tools")["github"].shown == {"enabled": True}
    assert found.entries("models")["default"].shown == {"value": "big-5"}
    assert set(found.entries("settings")) == {
        "model.api_key",
        "model.base_url",
        "model.default",
        "model.provider",
    }
    assert all(not entry.shown for entry in found.entries("settings").values())
    job = found.entries("jobs")["job1"]
    assert job.shown == {
        "name": "Job 1",
        "enabled": True,
        "schedule.kind": "cron",
        "schedule.expr": "1 8 * * *",
    }
    assert set(job.hidden) == {"prompt", "id"}
    assert set(found.entries("env")) == {
        "/etc/environment: DB_PASSWORD",
        "/etc/environment: PATH",
        f"{home}/.env: EMPTY",
        f"{home}/.env: OPENAI_KEY",
        f"{home}/.env: TELEGRAM_TOKEN",
    }
    assert {e.name: e.shown["version"] for e in found.entries("versions").values()} == {
        "hermes": "0.18.2",
        "hermes commit": "ab" * 20,
    }
    assert found.entries("tables")[f"{home}/state.db: messages"].shown == {"rows": 5}
    assert "httpx (/home/agent/.hermes/hermes-agent/venv)" in found.entries("python")
    files = found.entries("files")
    assert f"{home}/auth.json" in files
    assert not [name for name in files if "/logs/" in name or "/cache/" in name]


def _jobs(machine: Machine, home: str, change: Callable[[list[dict[str, object]]], object]) -> None:
    path = machine.path(f"{home}/cron/jobs.json")
    raw = json.loads(path.read_text())
    change(raw["jobs"])
    machine.put(f"{home}/cron/jobs.json", json.dumps(raw) + " ")


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (
            lambda m, h: m.put(f"{h}/config.yaml", m.path(f"{h}/config.yaml").read_text().replace("toolsets", "tool_sets")),
            {"3 tools gone: files, terminal, web"},
        ),
        (
            lambda m, h: _jobs(m, h, lambda jobs: jobs.clear()),
            {"3 scheduled jobs gone: job0, job1, job2"},
        ),
        (
            lambda m, h: _jobs(m, h, lambda jobs: [j.update(prompt="other") for j in jobs]),
            {"3 job prompts changed: job0, job1, job2"},
        ),
        (
            lambda m, h: _jobs(m, h, lambda jobs: [j.update(last_run_at="now") for j in jobs]),
            set(),
        ),
        (
            lambda m, h: m.put(f"{h}/.env", f"TELEGRAM_TOKEN={SECRETS[9]}\nEMPTY=\n"),
            {"1 environment variable gone: /home/agent/.hermes/.env: OPENAI_KEY"},
        ),
        (
            lambda m, h: m.put(f"{h}/.env", m.path(f"{h}/.env").read_text().replace(SECRETS[9], "new")),
            {"1 environment variable changed: /home/agent/.hermes/.env: TELEGRAM_TOKEN"},
        ),
        (
            lambda m, h: m.put(f"{h}/config.yaml", m.path(f"{h}/config.yaml").read_text().replace(SECRETS[6], "new")),
            {"protected setting model.api_key changed"},
        ),
        (
            lambda m, h: m.put(f"{h}/skills/mail/run.py", "print(1)\n"),
            {"1 skill changed: mail"},
        ),
        (
            lambda m, h: m.path(f"{h}/state.db").unlink(),
            {
                "1 database gone: /home/agent/.hermes/state.db",
                "1 table gone: /home/agent/.hermes/state.db: messages",
            },
        ),
    ],
)  # fmt: skip
def test_what_broke_hermes_is_said(
    machine: Machine, break_it: Callable[[Machine, str], object], told: set[str]
) -> None:
    home = hermes(machine)
    before = machine.take("hermes")
    break_it(machine, home)
    diff = before.diff(machine.take("hermes"))
    assert {s for s in diff.sentences() if "watched file" not in s} == told


def test_agent_zero_and_openclaw(machine: Machine) -> None:
    agent_zero(machine)
    found = machine.take("agent-zero")
    assert found.entries("models")["chat_model_name"].shown == {"value": "big-5"}
    assert found.entries("jobs")["u1"].shown == {"name": "T", "schedule.minute": "5"}
    assert found.entries("versions")["agent-zero commit"].shown == {"version": "cd" * 20}
    assert "default/index.faiss" in found.entries("memory")
    openclaw(machine)
    found = machine.take("openclaw")
    assert found.entries("models")["primary"].shown == {"value": "big-5"}
    assert found.entries("models")["fallbacks"].shown == {"value": "small-1"}
    assert found.entries("channels")["telegram"].shown == {"enabled": True}
    assert set(found.entries("channels")["telegram"].hidden) == {"botToken"}
    assert found.entries("jobs")["j1"].shown["schedule.expr"] == "0 7 * * *"
    assert "payload.message" in found.entries("jobs")["j1"].hidden
    assert found.entries("versions")["openclaw"].shown == {"version": "2026.11.3"}
    assert _fits(machine) == ["agent-zero", "openclaw"]


def test_a_home_behind_a_symlink_and_two_homes(machine: Machine) -> None:
    home = hermes(machine)
    machine.path("/data").mkdir()
    machine.path(home).rename(machine.path("/data/hermes"))
    machine.path(home).symlink_to(machine.path("/data/hermes"))
    machine.put("/opt/data/config.yaml", "model: {default: other}\n")
    found = machine.take("hermes")
    assert "notes" in found.entries("skills")
    assert found.entries("models")["default"].shown == {"value": "big-5"}
    assert found.entries("models")["default in /opt/data"].shown == {"value": "other"}


def test_the_key_is_the_machine_s_own(machine: Machine, tmp_path: Path) -> None:
    hermes(machine)
    before = machine.take("hermes")
    key = machine.root / "inventory.key"
    assert key.stat().st_mode & 0o777 == 0o600
    machine.taker = Taker(str(machine.root), str(key))  # as after a reboot
    assert before.diff(machine.take("hermes")).is_empty
    machine.taker = Taker(str(machine.root), str(tmp_path / "other.key"))
    diff = before.diff(machine.take("hermes"))
    assert diff.is_empty
    assert any("different keys" in note for note in diff.not_compared)
    key.chmod(0o644)  # others may know it: it is no key any more
    machine.taker = Taker(str(machine.root), str(key))
    assert machine.take().key_id != before.key_id
    assert any("could not be kept" in note for note in machine.end["notes"])


def test_two_equal_values_do_not_look_equal(machine: Machine) -> None:
    machine.put("/workspace/.env", "A=same\nB=same\n")
    env = machine.take().entries("env")
    assert len({e.hidden["value"] for e in env.values()}) == len(env)


def test_the_machine_s_own_profile(machine: Machine) -> None:
    request = {"profiles": {}, "deadline_s": 5}
    assert machine.taker.detect(request)["own"] == {}
    machine.put("/etc/torpor/profile.yaml", "format: 1\nname: mine\n")
    assert machine.taker.detect(request)["own"] == {"text": "format: 1\nname: mine\n"}
    os.truncate(machine.path("/etc/torpor/profile.yaml"), 1 << 20)
    assert "error" in machine.taker.detect(request)["own"]
