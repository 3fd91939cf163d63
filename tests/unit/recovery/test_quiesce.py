"""How a profile says an agent is brought to rest."""

from __future__ import annotations

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
        "mine --version": "runuser -u agent -- sh -c 'mine --version'",
        "other": "other 'a b'",
    }
    assert spec.cursor == "runuser -u agent -- sh -c 'mine outbox'"


def test_what_is_given_wins() -> None:
    mine = HookSpec(name="pause", hold="true")
    given = QuiesceSpec(hooks=(mine,), cursor="echo 1", on_failure="downgrade", discover=False)
    spec = spec_of(parse_profile(PROFILE, source="test"), given)
    assert [hook.name for hook in spec.hooks] == ["pause", "databases", "pg"]
    assert (spec.hooks[0], spec.cursor, spec.on_failure, spec.discover) == (
        *(mine, "echo 1", "downgrade", False),
    )


@pytest.mark.parametrize("name", shipped_names())
def test_the_shipped_ones_can_be_used(name: str) -> None:
    assert len(spec_of(shipped(name)).hooks) == len(shipped(name).quiesce)
