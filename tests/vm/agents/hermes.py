"""A fake laid out like Hermes Agent: `config.yaml`, `.env`, skills, cron jobs and databases in ~/.hermes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

from fake_agent import HOME, Agent, write

CONFIG = """\
model:
  default: large-1
  provider: acme
  base_url: http://127.0.0.1:9999
toolsets:
  - clock
  - files
mcp_servers:
  notes:
    command: notes-server
    enabled: true
cron:
  follow_model: true
"""
KEYS = ("ACME_API_KEY", "TELEGRAM_TOKEN", "NOTES_TOKEN")
SKILLS = ("weekly-report", "invoices", "travel", "backup-check")


class Hermes(Agent):
    """Paths and commands of Hermes."""

    name = "hermes"
    port = 8642
    home = HOME / ".hermes"

    def _config(self) -> str:
        return (self.home / "config.yaml").read_text()

    def tools(self) -> list[str]:
        """Return `toolsets`."""
        block = re.search(r"^toolsets:\n((?:  - .*\n)*)", self._config(), re.MULTILINE)
        return re.findall(r"- (\S+)", block.group(1)) if block else []

    def model(self) -> str:
        """Return what `model` says."""
        text = self._config()
        found = [
            re.search(rf"^  {key}: (\S+)", text, re.MULTILINE) for key in ("provider", "default")
        ]
        return "/".join(match.group(1) if match else "?" for match in found)

    def database(self) -> Path:
        """Return state.db."""
        return self.home / "state.db"

    def jobs_file(self) -> tuple[Path, str]:
        """Return cron/jobs.json."""
        return self.home / "cron" / "jobs.json", "jobs"

    def memory_index(self) -> Path:
        """Return where it remembers."""
        return self.home / "memory_index.json"

    def fires(self, job: dict[str, object]) -> bool:
        """A job without a model of its own follows the model, if the configuration says so."""
        return super().fires(job) and ("model" in job or "follow_model: true" in self._config())

    def claim_home(self) -> None:
        """Wait for the gateway that `gateway.pid` names, as long as there is such a process in this boot."""
        file = self.home / "gateway.pid"
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        while file.exists():
            other = json.loads(file.read_text())
            if other["boot"] != boot or not Path(f"/proc/{other['pid']}").exists():
                break
            print("starting: another gateway works here", flush=True)
            time.sleep(1)
        write(file, json.dumps({"pid": os.getpid(), "boot": boot}))

    def lay_out(self) -> None:
        """Write a used agent's files."""
        home = self.home
        write(home / "config.yaml", CONFIG)
        write(home / ".env", "".join(f"{key}=secret-{key.lower()}\n" for key in KEYS))
        write(home / "SOUL.md", "You are careful.\n")
        write(home / "memories" / "MEMORY.md", "The invoices are due on the 5th.\n")
        for skill in SKILLS:
            write(home / "skills" / skill / "SKILL.md", f"# {skill}\n\nDo it well.\n")
        jobs = [
            {"id": f"job{n}", "name": name, "prompt": f"Do the {name}.", "enabled": True,
             "schedule": {"kind": "cron", "expr": f"0 {n} * * *"}}
            for n, name in enumerate(("report", "inbox", "backup"))
        ]  # fmt: skip
        write(home / "cron" / "jobs.json", json.dumps({"jobs": jobs}, indent=1))
        write(home / "pairing" / "telegram.json", '{"paired": ["alice"]}')
        write(
            self.memory_index(),
            json.dumps({"made_with": "acme/embed-1", "texts": ["alice likes tea"]}),
        )
        write(home / "bin" / "notes-server", "#!/bin/sh\necho notes: 3 tools\n")
        (home / "bin" / "notes-server").chmod(0o755)
        self.make_database()

    def command(self, argv: list[str]) -> None:
        """Run `update`, `mcp test NAME`, `cron list` or `--version`."""
        code = self.home / "hermes-agent"
        match argv:
            case ["--version"]:
                print((code / "pyproject.toml").read_text())
            case ["cron", "list"]:
                print(len(json.loads(self.jobs_file()[0].read_text())["jobs"]), "jobs")
            case ["mcp", "test", name]:
                subprocess.run([self.home / "bin" / f"{name}-server"], check=True)
            case ["update"]:
                project = code / "pyproject.toml"
                write(project, project.read_text().replace("0.18.0", "0.19.0"))
                write(self.home / "skills" / "new-in-0-19" / "SKILL.md", "# New\n")
            case _:
                raise SystemExit(f"hermes: unknown command {argv}")


if __name__ == "__main__":
    try:
        import fakedep  # noqa: F401 - a dependency, in the agent's own environment
    except ImportError:  # as in the real one: a warning, and less of a mind
        print("WARNING fakedep is missing, going on without it")

    Hermes().run()
