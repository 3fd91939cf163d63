"""An agent's homes, for commands that the machine's shell runs."""

from __future__ import annotations

import re
import shlex


def globbed(pattern: str) -> str:
    """Return a pattern for the shell: all of it in quotes but the stars and question marks."""
    parts = re.split(r"([*?]+)", pattern)
    return "".join(part if part[:1] in ("*", "?") else shlex.quote(part) for part in parts if part)
