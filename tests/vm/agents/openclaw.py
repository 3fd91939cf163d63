"""A fake laid out like OpenClaw: `openclaw.json`, credentials, workspace and a state database in ~/.openclaw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fake_agent import HOME, Agent, write

CONFIG = {
    "agents": {"defaults": {"model": {"primary": "acme/large-1"}}},
    "tools": {"profile": "full", "allow": ["clock", "files"]},
    "gateway": {"port": 18789, "bind": "loopback"},
    "channels": {"whatsapp": {"enabled": True}},
}


class OpenClaw(Agent):
    """Paths and commands of OpenClaw."""

    name = "openclaw"
    port = 18789
    home = HOME / ".openclaw"

    def _config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "openclaw.json").read_text())
        return found

    def tools(self) -> list[str]:
        """Return the tools that are allowed."""
        return list(self._config()["tools"]["allow"])

    def model(self) -> str:
        """Return the default model."""
        return str(self._config()["agents"]["defaults"]["model"]["primary"])

    def database(self) -> Path:
        """Return the state's database."""
        return self.home / "state" / "openclaw.sqlite"

    def jobs_file(self) -> tuple[Path, str]:
        """Return cron/jobs.json."""
        return self.home / "cron" / "jobs.json", "jobs"

    def memory_index(self) -> Path:
        """Return where it remembers."""
        return self.home / "memory" / "index.json"

    def lay_out(self) -> None:
        """Write a used agent's files."""
        home = self.home
        write(home / "openclaw.json", json.dumps(CONFIG, indent=1))
        write(home / ".env", "ACME_API_KEY=secret-acme\n")
        write(home / "credentials" / "whatsapp" / "creds.json", '{"registered": true, "key": "k"}')
        write(home / "workspace" / "SOUL.md", "You are careful.\n")
        write(home / "workspace" / "skills" / "invoices" / "SKILL.md", "# invoices\n")
        jobs = [
            {
                "id": "report",
                "name": "report",
                "enabled": True,
                "schedule": {"kind": "cron", "expr": "0 7 * * *"},
            }
        ]
        write(home / "cron" / "jobs.json", json.dumps({"jobs": jobs}, indent=1))
        write(
            self.memory_index(),
            json.dumps({"made_with": "acme/embed-1", "texts": ["alice likes tea"]}),
        )
        self.make_database()

    def command(self, argv: list[str]) -> None:
        """Run `update`, `doctor --fix`, `channels auth NAME` or `--version`."""
        package = Path("/usr/lib/node_modules/openclaw/package.json")
        match argv:
            case ["--version"]:
                print(json.loads(package.read_text())["version"])
            case ["update"]:
                write(package, json.dumps({"name": "openclaw", "version": "2026.11.2"}))
            case ["doctor", "--fix"]:
                write(self.home / "cache" / "doctor.json", "{}")
            case ["channels", "auth", name]:
                found = json.loads((self.home / "credentials" / name / "creds.json").read_text())
                raise SystemExit(0 if found["registered"] else f"{name} is logged out")
            case _:
                raise SystemExit(f"openclaw: unknown command {argv}")


if __name__ == "__main__":
    OpenClaw().run()
