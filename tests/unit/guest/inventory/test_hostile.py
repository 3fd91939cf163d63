"""Trees that mean harm: links out of it, loops, pipes, endless names, huge files, documents that are none."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from pathlib import Path

import pytest

from tests.unit.guest.inventory.machine import LONG_AGO, SECRETS, Machine, database, hermes
from torpor.recovery.profiles import parse_profile
from torpor_guest.inventory import agents, budget, walk

HOME = "/home/agent/.hermes"
WATCH = parse_profile("format: 1\nname: mine\nhomes: [/w]\nwatch: ['*', /x/**/y]\n", source="test")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


def test_links_are_listed_and_not_followed(machine: Machine, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "skills/evil").mkdir(parents=True)
    (outside / "skills/evil/SKILL.md").write_text("x")
    (outside / "secret").write_text(SECRETS[0])
    machine.path("/w/folder").mkdir(parents=True)
    machine.path("/w/folder/out").symlink_to(outside)
    machine.path("/w/link").symlink_to(outside / "secret")
    machine.path("/w/loop").symlink_to(machine.path("/w"))
    machine.path("/x").symlink_to(outside)
    found = machine.take(WATCH)
    files = found.entries("files")
    assert [name for name in files if name.startswith("/w")] == [
        "/w/folder/out",
        "/w/link",
        "/w/loop",
    ]
    assert all(files[name].shown == {"kind": "symlink"} for name in ("/w/link", "/w/loop"))
    hermes(machine)
    before = machine.take("hermes")
    machine.path(f"{HOME}/skills").rename(machine.path("/moved"))
    machine.path(f"{HOME}/skills").symlink_to(outside / "skills")
    after = machine.take("hermes")
    assert after.entries("skills") == {}
    assert any("is a symlink" in note for note in after.sections["skills"].notes)
    assert before.diff(after).counts["skills"].removed == 3


def test_what_is_no_file_is_not_opened(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.path("/w").mkdir()
    os.mkfifo(machine.path("/w/pipe"))
    monkeypatch.chdir(machine.path("/w"))  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    os.mkfifo(machine.path("/w/.env"))
    begun = time.monotonic()
    files = machine.take(WATCH).entries("files")
    assert time.monotonic() - begun < 5
    assert {n: e.shown["kind"] for n, e in files.items() if n.startswith("/w/")} == {
        "/w/pipe": "other",
        "/w/socket": "other",
    }


def test_many_names_and_depths_are_bounded(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "NAMES_MOST", 300)
    folder = machine.path("/w/deep")
    for _ in range(40):
        folder /= "d"
    folder.mkdir(parents=True)
    (folder / "f").write_text("x")
    found = machine.take(WATCH)
    assert not found.sections["files"].is_complete
    assert any(f"{walk.DEPTH_MOST} folders deep" in n for n in found.sections["files"].notes)
    for n in range(400):
        (machine.path("/w") / f"f{n:03}").write_text("x")
    section = machine.take(WATCH).sections["files"]
    assert not section.is_complete
    assert len(section.entries) <= 300
    assert "too many names were looked at" in section.notes


def test_many_entries_are_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "ENTRIES_MOST", 50)
    for n in range(80):
        machine.put(f"/w/f{n:03}", "x")
    found = machine.take(WATCH)
    assert sum(len(s.entries) for s in found.sections.values()) == 50
    assert not found.sections["files"].is_complete


def test_a_huge_file_is_known_by_its_size_and_time(machine: Machine) -> None:
    path = machine.put("/w/huge", "x")
    os.truncate(path, 1 << 40)
    os.utime(path, (LONG_AGO, LONG_AGO))
    begun = time.monotonic()
    entry = machine.take(WATCH).entries("files")["/w/huge"]
    assert time.monotonic() - begun < 5
    assert (entry.shown["size_bytes"], entry.shown["modified"]) == (1 << 40, int(LONG_AGO))
    assert dict(entry.hidden) == {}


def test_bytes_read_are_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "HASHED_MOST", 5000)
    for n in range(10):
        machine.put(f"/w/f{n}", "x" * 2000)
    files = machine.take(WATCH).entries("files")
    unknown = [n for n, e in files.items() if e.unknown == ("content",)]
    assert "/w/f9" in unknown
    assert "/w/f0" not in unknown


def test_the_deadline_cuts_and_says_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    hermes(machine)
    found = machine.take("hermes", deadline_s=1e-9)
    assert not found.is_complete
    assert any("it took too long" in s.notes for s in found.sections.values())
    slow = agents.Agent._file

    def late(self: agents.Agent, *args: object) -> None:
        self._budget.deadline = 0
        self._budget.check_time()
        slow(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(agents.Agent, "_file", late)
    found = machine.take("hermes")
    assert found.sections["skills"].is_complete
    assert not found.sections["files"].is_complete


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 5000,
        '{"jobs": 5}',
        '{"jobs": [1, null, "x", [], {"id": {"a": 1}}, {"id": true}]}',
        '{"jobs": [{"id": "a"}, {"id": "a"}]}',
        '{"jobs": {"a": {"b": %s}}}' % ('{"c":' * 30 + "1" + "}" * 30),
        json.dumps({"jobs": [{f"f{n}": n for n in range(500)}]}),
        json.dumps({"jobs": [{"id": "x" * 5000, "enabled": "y" * 5000, "\n\x00": 1}]}),
        json.dumps({"jobs": [{"id": f"j{n}"} for n in range(9000)]}),
        "\x00\xff",
    ],
)
def test_odd_job_files(machine: Machine, text: str) -> None:
    hermes(machine)
    machine.put(f"{HOME}/cron/jobs.json", text.encode("latin-1"))
    found = machine.take("hermes")
    assert len(found.entries("jobs")) <= 5000
    assert found.entries("skills"), "the others are listed all the same"
    for entry in found.entries("jobs").values():
        assert len(entry.name) <= 1024


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1\nb: *x\n",
        "model:\n\tdefault: x\n",
        "a: 1\n  b: 2\n",
        "? a\n: b\n",
        "a: [1, 2\n",
        "- - - - x\n" * 3,
    ],
)
def test_yaml_that_is_not_understood_is_said_to_be(machine: Machine, text: str) -> None:
    hermes(machine)
    machine.put(f"{HOME}/config.yaml", text)
    section = machine.take("hermes").sections["models"]
    assert section.entries == {}
    assert section.is_complete or "is not understood" in section.notes[0]


def test_what_may_be_a_secret_names_nothing(machine: Machine) -> None:
    hermes(machine)
    token = "sk0aB3dE5fG7hI9jK1lM3nO5pQ7"
    machine.put(f"{HOME}/config.yaml", f"toolsets: [web, {token}]\nmodel: {{default: {token}}}\n")
    found = machine.take("hermes")
    assert token not in json.dumps(found.to_json())
    assert set(found.entries("tools")) == {"web", "[1]"}


def test_names_that_are_no_text(machine: Machine) -> None:
    machine.path("/w").mkdir()
    (machine.path("/w") / os.fsdecode(b"\xff\n\x1b[2J")).write_text("x")
    found = machine.take(WATCH)
    assert "/w/\udcff\n\x1b[2J" in found.entries("files")


def test_what_cannot_be_read_is_listed_as_such(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hermes(machine)

    def closed(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(walk.Found, "open", closed)
    found = machine.take("hermes")
    files = found.entries("files")
    assert files[f"{HOME}/config.yaml"].unknown == ("content",)
    assert not found.sections["jobs"].is_complete
    assert not found.sections["debian"].is_complete
    assert found.entries("skills")["mail"].unknown == ("content",)


def test_odd_databases(machine: Machine) -> None:
    hermes(machine)
    machine.put(f"{HOME}/empty.db", "")
    machine.put(f"{HOME}/text.db", "not a database at all")
    machine.put(f"{HOME}/broken.db", b"SQLite format 3\0" + b"\xff" * 4000)
    (machine.path(HOME) / "linked.db").symlink_to(machine.path(f"{HOME}/state.db"))
    found = machine.take("hermes")
    databases = found.entries("sqlite")
    assert set(databases) == {f"{HOME}/{name}.db" for name in ("empty", "broken", "state")}
    assert databases[f"{HOME}/empty.db"].shown["is_empty"] is True
    assert "schema" in databases[f"{HOME}/broken.db"].unknown
    assert not found.sections["tables"].is_complete


def test_a_database_with_too_many_tables(machine: Machine) -> None:
    hermes(machine)
    connection = sqlite3.connect(machine.path(f"{HOME}/wide.db"))
    for n in range(2100):
        connection.execute(f'CREATE TABLE "t{n} ""x""" (a)')
    connection.commit()
    connection.close()
    database(machine.path(f"{HOME}/plain.db"), rows=3)
    found = machine.take("hermes")
    assert "schema" in found.entries("sqlite")[f"{HOME}/wide.db"].unknown
    assert found.entries("tables")[f"{HOME}/plain.db: messages"].shown == {"rows": 3}
