"""The process that takes inventories. The agent starts it when one is first asked for, and asks it again.

It is a process of its own so that a file system that hangs, a pattern that never ends or a huge document can be ended
by killing it; so that closing a database's file takes no lock from the agent; and so that what it found out about
files last time need not be found out again.

On its socket: one JSON request a line, {"do": "detect" | "take", …}. For `take`, answers are one JSON value a line: {"kind", …entry}
for each entry, and last {"end": …}; for `detect`, {"end": …}.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from torpor_guest.inventory import machine, packages, schedules, services
from torpor_guest.inventory.agents import HOMES_MOST, Agent
from torpor_guest.inventory.budget import Budget, OutOfTime, Section
from torpor_guest.inventory.commands import run_versions
from torpor_guest.inventory.content import Cache, Reader
from torpor_guest.inventory.keyed import Keyed
from torpor_guest.inventory.walk import Walker
from torpor_guest.users import forget_names

OWN_PROFILE = "/etc/torpor/profile.yaml"
_OWN_MOST = 256 << 10
_REQUEST_MOST = 4 << 20
_MEMORY_MOST = 512 << 20
_IDLE_S = 3600
_SOURCES = ("models", "settings", "tools", "skills", "jobs", "memory", "channels")


class Taker:
    """Takes inventories of the machine below `root`."""

    def __init__(self, root: str, key_path: str) -> None:
        self._root = root.rstrip("/")
        self._key_path = key_path
        self._keyed: Keyed | None = None
        self.cache = Cache()

    def detect(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return which profiles fit, and the words of the machine's own."""
        budget = Budget(time.monotonic() + float(request["deadline_s"]))
        section = Section("versions", budget)
        walker = Walker(self._root, budget, [])
        fits = []
        with contextlib.suppress(OutOfTime):
            for name, wanted in request["profiles"].items():
                homes = self._homes(walker, wanted["homes"], section)
                paths = [
                    p if p.startswith("/") else f"{h}/{p}"
                    for p in wanted["detect"]
                    for h in homes or ["/."]
                ]
                if any(next(iter(walker.glob(path, section)), None) for path in paths):
                    fits.append(name)
        own: dict[str, Any] = {}
        for found in walker.glob(OWN_PROFILE, section):
            try:
                reader = Reader(self.cache, budget, Keyed(b"0" * 32))
                own = {"text": reader.read(found, _OWN_MOST).decode()}
            except (OSError, UnicodeDecodeError, OutOfTime) as exc:
                own = {"error": str(exc)[:300]}
        return {"fits": fits, "own": own}

    def take(
        self, request: dict[str, Any], send: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        """Send every entry that the request's words find; return what is said of the whole."""
        begun = time.monotonic()
        forget_names()
        if self._keyed is None or not self._keyed.is_kept:
            self._keyed = self._keyed or Keyed.load(self._key_path)
        keyed = self._keyed
        budget = Budget(begun + float(request["deadline_s"]))
        notes = (
            []
            if keyed.is_kept
            else ["the key could not be kept: digests compare with no other inventory's"]
        )
        self.cache.hits = self.cache.misses = 0
        sections: dict[str, Any] = {}
        for kind, section in self._sections(request, keyed, budget, notes):
            for entry in section.entries.values():
                send({"kind": kind, **entry})
            sections[kind] = section.to_wire()
        return {
            "sections": sections,
            "notes": notes,
            "key_id": keyed.key_id,
            "duration_ms": round((time.monotonic() - begun) * 1000),
            "cache": {"hits": self.cache.hits, "misses": self.cache.misses},
        }

    def _sections(
        self, request: dict[str, Any], keyed: Keyed, budget: Budget, notes: list[str]
    ) -> list[tuple[str, Section]]:
        whole = Section("notes", budget)
        bare = Walker(self._root, budget, [])
        homes = self._homes(bare, request["homes"], whole)
        skip = [
            p if p.startswith("/") else f"{home}/{p}"
            for p in request["skip"]
            for home in homes or ["/."]
        ]
        walker = Walker(self._root, budget, skip)
        reader = Reader(self.cache, budget, keyed)
        agent = Agent(walker, reader, keyed, budget, homes)
        found: dict[str, Section] = {}

        def one(kind: str, work: Callable[[Section], object]) -> object:
            """Do the work of one kind; what goes wrong there is said there, and the others go on."""
            section = found.setdefault(kind, Section(kind, budget))
            begun = time.monotonic()
            try:
                return work(section)
            except OutOfTime:
                section.cut("it took too long")
            except (OSError, ValueError, TypeError, KeyError, RecursionError, MemoryError) as exc:
                section.cut(f"it could not be looked at: {exc!r}")
            finally:
                if request.get("timed"):
                    notes.append(f"{kind}: {(time.monotonic() - begun) * 1000:.1f} ms")
            return None

        places = [place for p in request["sqlite"] for place, _ in agent.places(p)]
        python = [place for p in request["python"] for place, _ in agent.places(p)]
        npm = [place for p in request["npm"] for place, _ in agent.places(p)]
        # what is cheap and tells most comes first, so that a deadline cuts off the long tail
        for kind in _SOURCES:
            for source in request["sources"].get(kind, ()):
                one(kind, lambda section, source=source: agent.source(source, section))  # type: ignore[misc]
        one("versions", lambda section: agent.versions(request["versions"], section))
        env = one("env", lambda section: agent.env(request["env_files"], section))
        one("cron", lambda section: schedules.cron(walker, reader, section, keyed))
        one("timers", lambda section: schedules.timers(walker, reader, section, keyed))
        one("ports", lambda section: machine.ports(f"{self._root}/proc", section))
        one("users", lambda section: machine.users(walker, reader, section))
        one("units", lambda section: services.units(walker, reader, section, budget))
        one("debian", lambda section: packages.debian(walker, reader, section))
        one("python", lambda section: packages.python(walker, reader, section, python))
        one("npm", lambda section: packages.npm(walker, reader, section, npm))
        one("tables", lambda tables: self._databases(walker, budget, keyed, places, one, tables))
        secret = env if isinstance(env, set) else set()
        one("files", lambda section: agent.files(request["watch"], secret, section))
        if request["commands"]:
            one(
                "versions",
                lambda section: run_versions(
                    request["versions"], self._user(request, homes), section, budget
                ),
            )
        notes += whole.notes
        return list(found.items())

    def _databases(
        self,
        walker: Walker,
        budget: Budget,
        keyed: Keyed,
        places: list[str],
        one: Callable[..., object],
        tables: Section,
    ) -> None:
        if not places:
            one("sqlite", lambda section: None)
            return
        from torpor_guest.inventory.databases import (
            databases,
        )  # not everyone has one: SQLite is loaded late

        one(
            "sqlite",
            lambda section: databases(walker, self.cache, budget, keyed, places, section, tables),
        )
        if budget.seconds_left == 0:
            tables.cut("it took too long")

    def _homes(self, walker: Walker, patterns: list[str], section: Section) -> list[str]:
        """Return the agent's homes that exist; one that is a symlink is looked at where it leads."""
        homes: list[str] = []
        for pattern in patterns:
            for found in walker.glob(pattern, section):
                path = found.path
                if found.is_link:
                    real = os.path.realpath(self._root + path)
                    if not real.startswith(self._root + "/") or not os.path.isdir(real):
                        continue
                    path = real[len(self._root) :]
                elif not found.is_folder:
                    continue
                if path not in homes:
                    homes.append(path)
        if len(homes) > HOMES_MOST:
            section.note(
                f"there are {len(homes)} homes of the agent; the first {HOMES_MOST} are looked at"
            )
        return homes[:HOMES_MOST]

    def _user(self, request: dict[str, Any], homes: list[str]) -> str | None:
        """Return who the agent's commands run as: whom the profile names, else the owner of its home."""
        if request.get("user") or not homes:
            return request.get("user")
        with contextlib.suppress(OSError):
            return str(os.stat(self._root + homes[0]).st_uid)
        return None


def serve(taker: Taker, stream: BinaryIO, fd: int) -> None:
    """Answer requests until the agent goes away, or asks nothing for an hour."""
    rest = b""
    while True:
        while b"\n" not in rest:
            if not select.select([fd], [], [], _IDLE_S)[0]:
                return
            piece = os.read(fd, 1 << 16)
            if not piece or len(rest) > _REQUEST_MOST:
                return
            rest += piece
        line, _, rest = rest.partition(b"\n")
        _answer(taker, json.loads(line), stream)


def _answer(taker: Taker, request: dict[str, Any], stream: BinaryIO) -> None:
    def send(value: dict[str, Any]) -> None:
        stream.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")

    try:
        end = taker.detect(request) if request["do"] == "detect" else taker.take(request, send)
        send({"end": end})
    except Exception as exc:  # noqa: BLE001 - the agent must get an answer, whatever broke
        send({"end": {"error": f"{exc!r}"[:500]}})
    stream.flush()


def main(root: str, key_path: str) -> None:
    """Serve on stdin, a socket."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MOST, _MEMORY_MOST))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # rather this than the agent's own work
    sys.dont_write_bytecode = True
    with (
        os.fdopen(os.dup(0), "wb", buffering=1 << 16) as stream,
        contextlib.suppress(BrokenPipeError),
    ):
        serve(Taker(root, key_path), stream, 0)
