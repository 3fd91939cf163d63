"""What runs by itself: crontabs, the folders of cron, and systemd's timers, with one digest a field."""

from __future__ import annotations

import os
import re

from torpor_guest.inventory.budget import Section
from torpor_guest.inventory.content import Reader
from torpor_guest.inventory.keyed import Keyed
from torpor_guest.inventory.walk import Found, Walker

_CRONTAB_MOST = 256 << 10
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)")
_SCHEDULE = re.compile(r"(@[a-z]+|(?:[0-9A-Za-z*,/~-]+[ \t]+){4}[0-9A-Za-z*,/~-]+)[ \t]+(.+)")
_PROGRAM = re.compile(r"[A-Za-z0-9_./+-]{1,80}")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\S*$")
_WRAPPERS = frozenset(
    {"sudo", "nice", "ionice", "env", "/usr/bin/env", "exec", "command", "timeout"}
)
_NO_PROGRAMS = frozenset({"cd", "test", "[", "true", "if", "then", "umask", "set"})
TIMER_FOLDERS = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
    "/root/.config/systemd/user", "/home/*/.config/systemd/user",
)  # fmt: skip
"""Where units are described, those that win first; the last two are users' own."""


def cron(walker: Walker, reader: Reader, section: Section, keyed: Keyed) -> None:
    """List every line of every crontab, and every program in the folders of cron."""
    for pattern, has_user in (
        ("/etc/crontab", True),
        ("/etc/cron.d/*", True),
        ("/var/spool/cron/crontabs/*", False),
    ):
        for found in walker.glob(pattern, section):
            if not found.is_file:
                continue
            try:
                text = reader.read(found, _CRONTAB_MOST).decode("utf-8", "replace")
            except OSError as exc:
                section.cut(f"{found.path} cannot be read: {exc.strerror}")
                continue
            _crontab(found.path, text, has_user, section, keyed)
    for how_often in ("hourly", "daily", "weekly", "monthly", "yearly"):
        for found in walker.glob(f"/etc/cron.{how_often}/*", section):
            if not found.is_file:
                continue
            digest = reader.digest(found)
            runs = bool(found.stat.st_mode & 0o111)
            if digest is None:
                section.add(found.path, {"runs": runs}, unknown=["content"])
            else:
                section.add(found.path, {"runs": runs}, {"content": digest})


def _crontab(path: str, text: str, has_user: bool, section: Section, keyed: Keyed) -> None:
    for line in text.splitlines():
        line = line.strip()
        variable = _VARIABLE.fullmatch(line)
        if not line or line.startswith("#"):
            continue
        if variable:
            name = f"{path}: {variable[1]}="
            section.add(name, {}, {"value": keyed.of_value(f"cron {name}", variable[2])})
            continue
        found = _SCHEDULE.fullmatch(line)
        if found is None:
            section.note(f"a line of {path} is not understood")
            continue
        schedule, command = re.sub(r"[ \t]+", " ", found[1]), found[2]
        shown: dict[str, object] = {"schedule": schedule}
        if has_user:
            user, _, command = command.partition(" ")
            shown["user"] = user.strip()
        command = command.strip()
        name = f"{path}: {_program(command)}"
        section.add(name, shown, {"command": keyed.of_value(f"cron {path}", command)})


def _program(command: str) -> str:
    """Return the name of the program that a command line runs; never an argument or a value."""
    for part in re.split(r"[;&|(){}\n]+", command):
        words = [word for word in part.split() if not _ASSIGNMENT.match(word)]
        while words and words[0] in _WRAPPERS:
            words.pop(0)
            while words and (
                words[0].startswith("-") or words[0].isdigit() or _ASSIGNMENT.match(words[0])
            ):
                words.pop(0)
        if words and words[0] not in _NO_PROGRAMS:
            return words[0] if _PROGRAM.fullmatch(words[0]) else "command"
    return "command"


def timers(walker: Walker, reader: Reader, section: Section, keyed: Keyed) -> None:
    """List the timers that are described, with what they say of when they run."""
    enabled = set()
    for folder in TIMER_FOLDERS[:2] + TIMER_FOLDERS[-2:]:
        for found in walker.glob(f"{folder}/*.wants/*.timer", section):
            enabled.add(_label(found.path.rpartition(".wants/")[0] + "/" + found.name))
    seen = set()
    for folder in TIMER_FOLDERS:
        for found in walker.glob(f"{folder}/*.timer", section):
            name = _label(found.path)
            if name in seen:
                continue
            seen.add(name)
            if found.is_link:
                if _target(found) == "/dev/null":
                    section.add(name, {"masked": True})
                continue
            _timer(name, found, name in enabled, reader, section, keyed)


def _label(path: str) -> str:
    """Return a unit's name; a user's own has the user before it."""
    user = re.match(r"/(?:home/)?([^/]+)/\.config/systemd/user/", path)
    unit = os.path.basename(path)
    return f"{user[1]}: {unit}" if user else unit


def _timer(
    name: str, found: Found, enabled: bool, reader: Reader, section: Section, keyed: Keyed
) -> None:
    try:
        text = reader.read(found, _CRONTAB_MOST).decode("utf-8", "replace")
    except OSError as exc:
        section.cut(f"{found.path} cannot be read: {exc.strerror}")
        return
    shown: dict[str, object] = {"enabled": enabled}
    hidden: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            inside = line == "[Timer]"
        key, equals, value = line.partition("=")
        if not inside or not equals or line.startswith(("#", ";")):
            continue
        key = key.strip()
        if key.startswith("On"):
            known = shown.get(key)
            shown[key] = value.strip() if known is None else f"{known}; {value.strip()}"
        else:
            hidden[key] = keyed.of_value(f"timer {name} {key}", value.strip())
    section.add(name, shown, hidden)


def _target(found: Found) -> str:
    try:
        return os.readlink(found.name, dir_fd=found.folder)
    except OSError:
        return ""
