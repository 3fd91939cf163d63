"""How a profile says an agent is brought to rest."""

from __future__ import annotations

import getpass
import os
import subprocess
from pathlib import Path

import pytest

from torpor.model_quiesce import HookSpec, QuiesceSpec
from torpor.recovery.profiles import parse_profile, shipped, shipped_names
from torpor.recovery.quiesce import spec_of

PROFILE = """
format: 1
name: mine
user: agent
homes: [/home/*/.mine, /opt/mine]
versions:
  - {name: mine --version, command: mine --version}
  - {name: other, command: {command: [other, "a b"], user: root}}
  - {name: read, git: code}
quiesce:
  - {name: databases, kind: sqlite, paths: ["*.db", cron/runs.db, /srv/x.db], required: true}
  - {name: pause, kind: command, hold: mine pause, release: mine resume, order: 7}
  - {name: pg, kind: postgresql}
cursor:
  command: {command: mine outbox}
"""


def test_what_a_profile_says() -> None:
    spec = spec_of(parse_profile(PROFILE, source="test"))
    databases, pause, postgres = spec.hooks
    assert databases.paths == (
        *("/home/*/.mine/*.db", "/opt/mine/*.db"),
        *("/home/*/.mine/cron/runs.db", "/opt/mine/cron/runs.d[b]"),  # it may not be there
        "/srv/x.db",
    )
    assert (databases.kind, databases.required) == ("sqlite", True)
    assert (pause.hold, pause.release, pause.order, pause.user) == (
        *("mine pause", "mine resume", 7, "agent"),
    )
    assert postgres.kind == "postgres"
    assert spec.versions == {
        "mine --version": "runuser -s /bin/sh -c 'PATH=$HOME/.local/bin:$PATH; mine --version' agent",
        "other": "other 'a b'",
    }
    assert spec.cursor == "runuser -s /bin/sh -c 'PATH=$HOME/.local/bin:$PATH; mine outbox' agent"


def test_what_is_given_wins() -> None:
    mine = HookSpec(name="pause", hold="true")
    given = QuiesceSpec(hooks=(mine,), cursor="echo 1", on_failure="downgrade", discover=False)
    spec = spec_of(parse_profile(PROFILE, source="test"), given)
    assert [hook.name for hook in spec.hooks] == ["pause", "databases", "pg"]
    assert (spec.hooks[0], spec.cursor, spec.on_failure, spec.discover) == (
        *(mine, "echo 1", "downgrade", False),
    )


def cursor(place: Path, said: str) -> tuple[int, str]:
    """Return the status and the output of the cursor of an agent whose home is below `place`."""
    text = f"format: 1\nname: mine\nhomes: ['{place}/no', '{place}/*/.my agent']\ncursor: {said}\n"
    command = spec_of(parse_profile(text, source="test")).cursor
    assert command is not None
    found = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    return found.returncode, found.stdout.strip()


def test_the_cursor_of_a_file(tmp_path: Path) -> None:
    home = tmp_path / "ann" / ".my agent"
    home.mkdir(parents=True)
    status, said = cursor(tmp_path, "{file: out.json}")
    assert (status, said[:8]) == (1, "none of "), said
    file = home / "out.json"
    file.write_text('{"sent": [{"a/b": 41}, {"a/b": 42}], "by": "mail"}')
    os.utime(file, (1_800_000_000, 1_800_000_000))
    status, said = cursor(tmp_path, "{file: out.json}")
    assert status == 0
    assert said.startswith(f"{file}, written 2027-01-1"), said
    assert said.endswith(", 50 bytes")
    assert cursor(tmp_path, "{file: out.json, at: /sent/1/a~1b}") == (0, "42")
    assert cursor(tmp_path, "{file: out.json, at: /by}") == (0, "mail")
    assert cursor(tmp_path, f"{{file: {file}, at: /sent/0}}") == (0, '{"a/b": 41}')
    assert cursor(tmp_path, "{file: out.json, at: /none}")[0] == 1


def test_the_cursors_command_is_run_by_the_owner_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ann" / ".my agent").mkdir(parents=True)
    (tmp_path / "runuser").write_text('#!/bin/sh\necho "$5 runs: $4"\n')
    (tmp_path / "runuser").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    status, said = cursor(tmp_path, "{command: mine outbox}")
    assert (status, said) == (
        0,
        f"{getpass.getuser()} runs: PATH=$HOME/.local/bin:$PATH; mine outbox",
    )


@pytest.mark.parametrize("name", [name for name in shipped_names() if name != "machine"])
def test_the_shipped_ones_have_a_cursor(name: str) -> None:
    assert spec_of(shipped(name)).cursor


@pytest.mark.parametrize("name", shipped_names())
def test_the_shipped_ones_can_be_used(name: str) -> None:
    assert len(spec_of(shipped(name)).hooks) == len(shipped(name).quiesce)
