"""What is written down with a snapshot: versions of tools, and how far the machine's dealings with others had come."""

from __future__ import annotations

from typing import Any

from torpor_guest.errors import AgentError
from torpor_guest.keeping import plain
from torpor_guest.launcher import Launcher
from torpor_guest.programs import Programs

_ITEMS_MOST = 32
_NAME_MOST = 64
_VALUE_MOST = 200
_LIMIT_S = 10.0
_CURSOR_LIMIT_S = 5.0
"""Shorter, because all is held meanwhile."""


class Facts:
    """Asks commands for one line each."""

    def __init__(self, launcher: Launcher) -> None:
        self._programs = Programs(launcher)

    async def versions(self, commands: object) -> dict[str, Any]:
        """Return the first line that each of the commands, by name, writes; None where one fails."""
        versions: dict[str, str | None] = {}
        notes: list[str] = []
        if isinstance(commands, dict):
            for name, command in list(commands.items())[:_ITEMS_MOST]:
                found, note = await self._line(str(command), _LIMIT_S)
                versions[plain(str(name), _NAME_MOST)] = found
                if note:
                    notes.append(f"version of {plain(str(name), _NAME_MOST)}: {note}")
        return {"versions": versions, "notes": notes}

    async def cursor(self, command: object) -> dict[str, Any]:
        """Return the first line that the command writes."""
        if not isinstance(command, str) or not command:
            return {}
        found, note = await self._line(command, _CURSOR_LIMIT_S)
        return {"cursor": found, "cursor_note": note}

    async def _line(self, command: str, limit_s: float) -> tuple[str | None, str]:
        try:
            status, output = await self._programs.run(["/bin/sh", "-c", command], timeout_s=limit_s)
        except AgentError as exc:
            return None, plain(str(exc), _VALUE_MOST)
        lines = output.strip().splitlines()
        if status != 0 or not lines:
            return None, f"status {status}, {plain(output.strip()[-_VALUE_MOST:], _VALUE_MOST)}"
        return plain(lines[0], _VALUE_MOST), ""
