"""Trees laid out like machines with one of the three agents, with secrets planted wherever an agent has them."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torpor.model_inventory import Inventory, inventory_from_json
from torpor.recovery.inventory.plan import plan_of
from torpor.recovery.profiles import AgentProfile, shipped
from torpor_guest.inventory.worker import Taker

SECRETS = tuple(f"planted-{n}-Zq9" for n in range(20))
LONG_AGO = time.time() - 1000


class Machine:
    """A tree that stands for a machine, and what takes its inventory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.put(
            "/etc/passwd",
            "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/sh\n",
        )
        self.put("/etc/group", "root:x:0:\nagent:x:1000:\nsudo:x:27:agent\n")
        self.put(
            "/var/lib/dpkg/status",
            "Package: openssl\nStatus: install ok installed\nArchitecture: amd64\nVersion: 3.0.1\n"
            "Description: x\n Version: 9\n\n"
            "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n\n"
            "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36\n\n"
            "Package: libc6\nStatus: install ok installed\nArchitecture: i386\nVersion: 2.36\n",
        )
        for folder in (
            "requests-2.31.0.dist-info",
            "Foo_Bar-1.0rc1.dist-info",
            "old.egg-info",
            "x",
        ):
            (self.path("/usr/lib/python3/dist-packages") / folder).mkdir(parents=True)
        self.put("/usr/lib/node_modules/npm/package.json", '{"name": "npm", "version": "10.1.0"}')
        self.put("/usr/lib/node_modules/@a/b/package.json", '{"version": "0.1.0"}')
        self.put(
            "/etc/crontab",
            f"PATH=/bin\nMAILTO={SECRETS[0]}\n# m h\n17 *  * * * root  cd / && run-parts --report /etc/cron.hourly\n"
            f"@reboot root KEY={SECRETS[1]} /opt/start --token {SECRETS[2]}\n",
        )
        self.put("/var/spool/cron/crontabs/agent", f"0 8 * * 1-5 curl -H {SECRETS[3]} http://x\n")
        self.put(
            "/etc/systemd/system/a.timer",
            "[Unit]\nX=1\n[Timer]\nOnCalendar=daily\nPersistent=true\n",
        )
        self.put("/etc/environment", f"PATH=/bin\nDB_PASSWORD={SECRETS[4]}\n")
        self.taker = Taker(str(root), str(root / "inventory.key"))

    def path(self, name: str) -> Path:
        """Where the machine's `name` lies."""
        return self.root / name.lstrip("/")

    def put(self, name: str, text: str | bytes) -> Path:
        """Write a file, as if long ago: so lately changed ones are not kept in the cache."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        os.utime(path, (LONG_AGO, LONG_AGO))
        return path

    def take(
        self, profile: str | AgentProfile = "machine", *, deadline_s: float = 30, **more: Any
    ) -> Inventory:
        """Take its inventory, as the host would keep it."""
        found = shipped(profile) if isinstance(profile, str) else profile
        entries: dict[str, list[Mapping[str, Any]]] = {}

        def send(item: dict[str, Any]) -> None:
            item = json.loads(json.dumps(item))
            entries.setdefault(item.pop("kind"), []).append(item)

        request = {**plan_of(found, commands=False), "deadline_s": deadline_s, **more}
        self.end = json.loads(json.dumps(self.taker.take(request, send)))
        return inventory_from_json(
            {
                "format": 1,
                "taken_at": "2026-01-02T03:04:05+00:00",
                "profile": found.name,
                "profile_digest": found.digest,
                "key_id": self.end["key_id"],
                "duration_ms": self.end["duration_ms"],
                "notes": self.end["notes"],
                "sections": {
                    kind: {**told, "entries": entries.get(kind, [])}
                    for kind, told in self.end["sections"].items()
                },
            }
        )


def hermes(machine: Machine) -> str:
    """Lay out Hermes Agent; return its home."""
    home = "/home/agent/.hermes"
    machine.put(
        f"{home}/config.yaml",
        '# settings\n_config_version: 50\nmodel:\n  default: "big-5"\n  provider: house\n'
        f"  base_url: https://u:{SECRETS[5]}@host/v1\n  api_key: {SECRETS[6]}\n"
        "toolsets:\n  - web\n  - files\n  - terminal\n"
        f"mcp_servers:\n  github:\n    command: npx\n    env: {{TOKEN: {SECRETS[7]}}}\n    enabled: true\n"
        f"personality: |\n  You are kind.\n  {SECRETS[8]}\n",
    )
    machine.put(
        f"{home}/.env",
        f"# keys\nTELEGRAM_TOKEN={SECRETS[9]}\nexport OPENAI_KEY='{SECRETS[10]}'\nEMPTY=\n",
    )
    machine.put(f"{home}/auth.json", json.dumps({"refresh": SECRETS[11]}))
    for skill in ("notes", "web/search", "mail"):
        machine.put(f"{home}/skills/{skill}/SKILL.md", f"# {skill}\n")
        machine.put(f"{home}/skills/{skill}/run.py", "print()\n")
    machine.put(f"{home}/skills/README", "no skill\n")
    jobs = [
        {
            "id": f"job{n}",
            "name": f"Job {n}",
            "prompt": f"do {n} with {SECRETS[12]}",
            "schedule": {"kind": "cron", "expr": f"{n} 8 * * *"},
            "enabled": True,
            "last_run_at": None,
        }
        for n in range(3)
    ]
    machine.put(f"{home}/cron/jobs.json", json.dumps({"jobs": jobs, "updated_at": "x"}))
    machine.put(f"{home}/memories/MEMORY.md", f"likes tea, {SECRETS[13]}\n")
    machine.put(
        f"{home}/hermes-agent/pyproject.toml", '[project]\nname = "hermes"\nversion = "0.18.2"\n'
    )
    machine.put(f"{home}/hermes-agent/.git/HEAD", "ref: refs/heads/main\n")
    machine.put(f"{home}/hermes-agent/.git/packed-refs", f"# pack\n{'ab' * 20} refs/heads/main\n")
    (
        machine.path(home) / "hermes-agent/venv/lib/python3.14/site-packages/httpx-0.28.0.dist-info"
    ).mkdir(parents=True)
    machine.put(f"{home}/logs/gateway.log", SECRETS[14])
    machine.put(f"{home}/cache/big", "x")
    database(machine.path(f"{home}/state.db"), rows=5)
    return home


def agent_zero(machine: Machine) -> str:
    """Lay out Agent Zero; return its home."""
    home = "/a0/usr"
    machine.put(
        f"{home}/settings.json",
        json.dumps(
            {
                "chat_model_provider": "house",
                "chat_model_name": "big-5",
                "embed_model_provider": "house",
                "embed_model_name": "small-1",
                "api_keys": {"house": SECRETS[15]},
                "auth_password": SECRETS[16],
            }
        ),
    )
    machine.put(f"{home}/secrets.env", f"HOUSE_KEY={SECRETS[17]}\n")
    machine.put(f"{home}/skills/notes/SKILL.md", "# notes\n")
    tasks = [
        {
            "uuid": "u1",
            "name": "T",
            "prompt": SECRETS[18],
            "state": "idle",
            "schedule": {"minute": "5"},
        }
    ]
    machine.put(f"{home}/scheduler/tasks.json", json.dumps({"tasks": tasks}))
    machine.put(f"{home}/memory/default/index.faiss", b"\0" * 64)
    machine.put(
        f"{home}/memory/default/embedding.json",
        json.dumps({"model_provider": "house", "model_name": "small-1"}),
    )
    machine.put("/a0/.git/HEAD", f"{'cd' * 20}\n")
    machine.put("/a0/run_ui.py", "")
    return home


def openclaw(machine: Machine) -> str:
    """Lay out OpenClaw; return its home."""
    home = "/root/.openclaw"
    machine.put(
        f"{home}/openclaw.json",
        "{\n  // JSON5\n  agents: {defaults: {model: {primary: 'big-5', fallbacks: ['small-1',]}}},\n"
        f"  channels: {{telegram: {{enabled: true, botToken: '{SECRETS[19]}'}}, whatsapp: {{enabled: false}}}},\n"
        "  tools: {profile: 'full'},\n  gateway: {port: 18789, auth: {token: 'planted-0-Zq9'}},\n}\n",
    )
    jobs = [
        {
            "id": "j1",
            "name": "Brief",
            "enabled": True,
            "schedule": {"kind": "cron", "expr": "0 7 * * *"},
            "payload": {"kind": "agentTurn", "message": SECRETS[0]},
            "state": {"nextRunAtMs": 5},
        }
    ]
    machine.put(f"{home}/cron/jobs.json", json.dumps({"version": 1, "jobs": jobs}))
    machine.put(f"{home}/workspace/SOUL.md", "kind\n")
    machine.put(f"{home}/workspace/skills/notes/SKILL.md", "# notes\n")
    database(machine.path(f"{home}/state/openclaw.sqlite"), rows=2)
    machine.put("/usr/lib/node_modules/openclaw/package.json", '{"version": "2026.11.3"}')
    return home


def database(path: Path, *, rows: int, wal: bool = False) -> None:
    """Make a database with one table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    if wal:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, text TEXT)")
    connection.executemany("INSERT INTO messages (text) VALUES (?)", [(SECRETS[1],)] * rows)
    connection.commit()
    connection.close()
    os.utime(path, (LONG_AGO, LONG_AGO))
