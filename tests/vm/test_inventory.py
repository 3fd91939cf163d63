"""The inventory of a real machine with an agent laid out like Hermes: what changed between two snapshots, exactly."""

from __future__ import annotations

import json
import statistics
import time

import pytest

from tests.fakes.secrets_in import PLANTED, assert_no_secret
from torpor import Sandbox, Snapshot
from torpor.errors import NotFound

AGENT = r"""
set -e
H=/home/agent/.hermes
mkdir -p $H/skills/notes $H/skills/mail/deep $H/cron $H/memories $H/hermes-agent/.git/refs/heads
printf 'model:\n  default: big-5\n  provider: house\n  api_key: sk-planted-in-config-11\ntoolsets: [web, files]\nmcp_servers:\n  github: {enabled: true, token: ghp-planted-12}\n' > $H/config.yaml
printf 'TELEGRAM_TOKEN=planted-env-13\nexport OTHER="planted-env-14"\n' > $H/.env
printf '# notes\n' > $H/skills/notes/SKILL.md
printf '# mail\n' > $H/skills/mail/deep/SKILL.md
printf '{"jobs": [{"id": "daily", "name": "Daily", "prompt": "say planted-prompt-15", "schedule": {"kind": "cron", "expr": "0 8 * * *"}, "enabled": true, "last_run_at": "then"}]}' > $H/cron/jobs.json
printf 'remember' > $H/memories/MEMORY.md
printf 'version = "0.18.0"\n' > $H/hermes-agent/pyproject.toml
printf 'ref: refs/heads/main\n' > $H/hermes-agent/.git/HEAD
printf '%040d\n' 7 > $H/hermes-agent/.git/refs/heads/main
printf '15 3 * * * agent /usr/bin/env KEY=planted-cron-16 /usr/local/bin/backup --now\n' > /etc/cron.d/agent
python3 - $H/state.db <<'PY'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("PRAGMA journal_mode=WAL")
db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, text TEXT)")
db.executemany("INSERT INTO messages (text) VALUES (?)", [("planted-row-17",)] * 120)
db.commit()
db.close()
PY
chown -R agent:agent $H
"""

CHANGE = r"""
set -e
H=/home/agent/.hermes
# a package as dpkg would have it, and one as pip would
cat >> /var/lib/dpkg/status <<'DEB'
Package: torpor-probe
Status: install ok installed
Architecture: all
Version: 1.2-3
Maintainer: nobody
Description: a probe

DEB
mkdir -p /usr/local/lib/python3.13/dist-packages/probe_dist-2.5.dist-info
rm -r $H/skills/mail
sed -i 's/say planted-prompt-15/say planted-prompt-18/; s/then/now/' $H/cron/jobs.json
sed -i 's/^OTHER\|^export OTHER.*//' $H/.env
sed -i 's/big-5/big-6/' $H/config.yaml
sed -i 's/^15 3/45 4/' /etc/cron.d/agent
python3 - $H/state.db <<'PY'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("DELETE FROM messages WHERE id > 3")
db.execute("CREATE TABLE extra (x)")
db.commit()
db.close()
PY
"""

WANTED = (
    "model default big-5 -> big-6",
    "protected setting model.default changed",
    "1 skill gone: mail/deep",
    "1 job prompt changed: daily",
    "1 environment variable gone: /home/agent/.hermes/.env: OTHER",
    "database /home/agent/.hermes/state.db: schema changed",
    "1 table new: /home/agent/.hermes/state.db: extra",
    "table /home/agent/.hermes/state.db: messages: 120 -> 3 rows",
    "1 cron schedule changed: /etc/cron.d/agent: /usr/local/bin/backup",
    "1 Debian package installed: torpor-probe",
    "1 Python package installed: probe-dist (/usr/local)",
    "1 watched file changed: /home/agent/.hermes/config.yaml",
)


def test_what_changed_between_two_snapshots_is_said_exactly(
    fresh: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh.exec(AGENT, user="root", check=True)
    assert fresh.profile().name == "hermes"
    times = [_timed(fresh) for _ in range(4)]
    before = fresh.snapshot(label="before")
    assert before.info.inventory == "taken"
    fresh.exec(CHANGE, user="root", check=True)
    after = fresh.snapshot(label="after")
    first, second = before.inventory(), after.inventory()
    assert (first.profile, second.profile, first.key_id) == ("hermes", "hermes", second.key_id)
    diff = first.diff(second)
    assert diff.not_compared == ()
    told = tuple(s for s in diff.sentences() if not s.startswith(("database", "service")))
    assert told == tuple(s for s in WANTED if not s.startswith("database"))
    (database,) = diff.of("sqlite")
    assert database.field("schema") is not None
    assert Snapshot.verify(after.id).ok
    for found in (first, second, fresh.inventory(commands=True)):
        assert_no_secret(json.dumps(found.to_json()))
    versions = {e.name: e.shown["version"] for e in first.entries("versions").values()}
    assert versions == {"hermes": "0.18.0", "hermes commit": f"{7:040}"}
    assert first.entries("units")["cron.service"].shown["state"] == "active"
    assert first.entries("units")["cron.service"].shown["restarts"] == 0
    with capsys.disabled():
        print(
            f"\ninventory, seconds: first {times[0]:.2f}, then {statistics.median(times[1:]):.2f}"
        )
        print(f"in the guest, ms: first {first.duration_ms}, second {second.duration_ms}")
        for kind, section in second.sections.items():
            print(
                f"  {kind}: {len(section.entries)} {'' if section.is_complete else section.notes}"
            )


def _timed(sandbox: Sandbox) -> float:
    begun = time.monotonic()
    sandbox.inventory()
    return time.monotonic() - begun


def test_what_it_costs_a_snapshot_and_a_sleep(
    fresh: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    figures: dict[str, list[float]] = {"snapshot": [], "of it inventory": [], "hibernate": []}
    for _ in range(4):
        begun = time.monotonic()
        taken = fresh.snapshot()
        figures["snapshot"].append(time.monotonic() - begun)
        figures["of it inventory"].append(taken.inventory().duration_ms / 1000)
        assert taken.info.inventory == "taken"
        taken.delete()
    for _ in range(2):
        begun = time.monotonic()
        asleep = fresh.hibernate()
        figures["hibernate"].append(time.monotonic() - begun)
        assert asleep.info.inventory == "taken"
        fresh.wake()
    fork = fresh.fork()
    try:
        with pytest.raises(NotFound, match="for a fork"):
            Snapshot.inventory(str(fork.info.parent_snapshot))
        assert fork.inventory().key_id == asleep.inventory().key_id
    finally:
        fork.delete()
    with capsys.disabled():
        print()
        for name, found in figures.items():
            print(f"  {name}: {', '.join(f'{seconds:.2f}' for seconds in found)} s")


def test_the_planted_values_are_found_where_they_are(fresh: Sandbox) -> None:
    """What looks for secrets in inventories would find them."""
    fresh.exec(AGENT, user="root", check=True)
    text = fresh.exec(
        "cat /home/agent/.hermes/config.yaml /home/agent/.hermes/.env /etc/cron.d/agent "
        "/home/agent/.hermes/cron/jobs.json",
        user="root",
    ).stdout
    with pytest.raises(AssertionError):
        assert_no_secret(text)
    assert len(PLANTED) > 3
