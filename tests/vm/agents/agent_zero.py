"""A fake laid out like Agent Zero: settings, memory, knowledge and scheduled tasks in /a0/usr, code in /a0."""

from __future__ import annotations

import json
from pathlib import Path

from fake_agent import Agent, write


class AgentZero(Agent):
    """Paths and commands of Agent Zero."""

    name = "agent-zero"
    port = 8080
    home = Path("/a0/usr")

    def _settings(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.home / "settings.json").read_text())
        return found

    def tools(self) -> list[str]:
        """Return the plugins' tools."""
        return [path.name.lstrip("_") for path in sorted((self.home / "plugins").iterdir())]

    def model(self) -> str:
        """Return the chat model."""
        settings = self._settings()
        return f"{settings['chat_model_provider']}/{settings['chat_model_name']}"

    def embedder(self) -> str:
        """Return the embedding model."""
        settings = self._settings()
        return f"{settings['embed_model_provider']}/{settings['embed_model_name']}"

    def database(self) -> Path:
        """Return the sessions' database."""
        return self.home / "chats.db"

    def jobs_file(self) -> tuple[Path, str]:
        """Return scheduler/tasks.json."""
        return self.home / "scheduler" / "tasks.json", "tasks"

    def memory_index(self) -> Path:
        """Return the index of the default memory."""
        return self.home / "memory" / "default" / "index.faiss"

    def lay_out(self) -> None:
        """Write a used agent's files."""
        home = self.home
        settings = {
            "chat_model_provider": "acme",
            "chat_model_name": "large-1",
            "embed_model_provider": "acme",
            "embed_model_name": "embed-1",
        }
        write(home / "settings.json", json.dumps(settings, indent=1))
        write(home / ".env", "API_KEY_ACME=secret-acme\n")
        write(home / "secrets.env", "GITHUB_TOKEN=secret-github\n")
        write(home / "knowledge" / "custom" / "house-rules.md", "Never send mail at night.\n")
        write(home / "skills" / "invoices" / "SKILL.md", "# invoices\n")
        for plugin in ("clock", "files"):
            write(home / "plugins" / plugin / "plugin.json", "{}")
        tasks = [
            {"uuid": f"t{n}", "name": name, "type": "scheduled", "prompt": f"Do the {name}.",
             "schedule": {"minute": "0", "hour": str(n), "day": "*", "month": "*", "weekday": "*"}}
            for n, name in enumerate(("report", "inbox"))
        ]  # fmt: skip
        write(home / "scheduler" / "tasks.json", json.dumps({"tasks": tasks}, indent=1))
        write(
            self.memory_index(),
            json.dumps({"made_with": "acme/embed-1", "texts": ["alice likes tea"]}),
        )
        write(
            home / "memory" / "default" / "embedding.json",
            '{"model_provider": "acme", "model_name": "embed-1"}',
        )
        self.make_database()

    def _save_time(self) -> None:
        """Make a snapshot of its own, unless another one is being made."""
        folder = self.home / ".time_travel"
        lock = folder / "lock"
        if lock.exists():
            raise SystemExit(f"{lock}: another snapshot is being made")
        write(folder / "workspaces" / "main" / str(len(list(folder.glob("*/main/*")))), "{}")

    def command(self, argv: list[str]) -> None:
        """Run `update` or `time-travel snapshot`."""
        match argv:
            case ["time-travel", "snapshot"]:
                self._save_time()
            case ["update"]:
                write(Path("/a0/VERSION"), "v2.16\n")
            case _:
                raise SystemExit(f"a0: unknown command {argv}")


if __name__ == "__main__":
    AgentZero().run()
