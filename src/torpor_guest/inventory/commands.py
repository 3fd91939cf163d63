"""The commands that a profile names to learn versions by; run in the guest, as the agent's user."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

from torpor_guest.errors import AgentError
from torpor_guest.inventory.budget import Budget, Section
from torpor_guest.users import environment, find_user

_OUTPUT_MOST = 64 << 10
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


def run_versions(
    versions: list[dict[str, Any]], user: str | None, section: Section, budget: Budget
) -> None:
    """Run the commands among `versions`; the first line of output is the version."""
    for version in versions:
        command = version.get("command")
        if command:
            _run(version["name"], command, user, section, budget)


def _run(
    name: str, command: dict[str, Any], user: str | None, section: Section, budget: Budget
) -> None:
    import signal
    import subprocess

    wanted = command["command"]
    argv = ["/bin/sh", "-c", wanted] if isinstance(wanted, str) else wanted
    limit_s = min(float(command["timeout_seconds"]), budget.seconds_left)
    try:
        who = find_user(command.get("user") or user)
        credentials = who.credentials
        env = {os.fsdecode(key): os.fsdecode(value) for key, value in environment(who).items()}
        env["PATH"] = f"{who.home}/.local/bin:{env['PATH']}"
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=env,
            start_new_session=True,
            user=credentials[0] if credentials else None,
            group=credentials[1] if credentials else None,
            extra_groups=credentials[2] if credentials else None,
        )
    except (OSError, AgentError) as exc:
        section.note(f"{name}: {exc}")
        return
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        section.note(f"{name}: it took longer than {limit_s:g} s")
        section.add(name, unknown=["version"])
        return
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()
    line = _TEXT.search(output[:_OUTPUT_MOST].decode("utf-8", "replace"))
    if process.returncode == 0 and line:
        section.add(name, {"version": line[0].strip()})
    elif process.returncode not in (126, 127):  # else it is not installed
        section.note(f"{name}: it ended with status {process.returncode}")
        section.add(name, unknown=["version"])
