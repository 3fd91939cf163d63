"""Making a machine that goes on from a snapshot safe to hand out.

The order matters. What is to be held still in a machine that is only looked at is held before all else, so that none
of it sees the new time; for its timers the disk is thawed then already. Randomness comes next, since all that is made anew after it depends on it; the clock before
anything writes a time; the thaw before anything writes at all. Each step is confirmed before the next, and a
failure ends the renewal: the host does not hand such a machine out. All of it can be done again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.freezer import Freezer
from torpor_guest.identity import Identity, check_hostname, replace_file
from torpor_guest.kernel import Kernel
from torpor_guest.paths import number
from torpor_guest.programs import Programs
from torpor_guest.quiesce import Quiesce
from torpor_guest.stillness import Stillness, Wanted
from torpor_guest.system import time_in
from torpor_guest.users import forget_names

GENERATION = "/run/torpor/generation"
"""What programs that keep random state of their own watch; it is replaced, never written in place."""
HOOKS = "/etc/torpor/on-restore.d"
_HOOK_LIMIT_S = 10.0
_HOOKS_LIMIT_S = 120.0
"""For all of them; the host waits no longer than it must."""
_REASON = re.compile(r"[a-z][a-z-]{0,31}")
_ENTROPY_BYTES = (32, 512)

_log = logging.getLogger("torpor")


@dataclass(frozen=True)
class Request:
    """What the host says when the machine goes on."""

    reason: str
    generation: int
    now_ns: int
    entropy: bytes
    hostname: str | None
    still: Wanted | None = None
    """What must not act in this machine; None: it goes on as it is."""

    @staticmethod
    def parse(params: dict[str, Any]) -> Request:
        """Return the request in `params`, or raise `AgentError`."""
        reason, hostname = params.get("reason"), params.get("hostname")
        if not isinstance(reason, str) or not _REASON.fullmatch(reason):
            raise AgentError(errors.INVALID, f"{str(reason)[:100]!r} is no reason")
        try:
            entropy = bytes.fromhex(str(params.get("entropy")))
        except ValueError:
            entropy = b""
        if not _ENTROPY_BYTES[0] <= len(entropy) <= _ENTROPY_BYTES[1]:
            raise AgentError(errors.INVALID, f"{len(entropy)} bytes of entropy are too few or many")
        generation = number(params, "generation", None)
        if generation is None:
            raise AgentError(errors.INVALID, "a renewal has a generation")
        return Request(
            reason=reason,
            generation=generation,
            now_ns=time_in(params),
            entropy=entropy,
            hostname=None if hostname is None else check_hostname(hostname),
            still=None if params.get("still") is None else Wanted.parse(params["still"]),
        )


class Renewals:
    """Carries renewals out, one at a time."""

    def __init__(
        self,
        kernel: Kernel,
        freezer: Freezer,
        programs: Programs,
        quiesce: Quiesce,
        stillness: Stillness,
    ) -> None:
        self._kernel = kernel
        self._stillness = stillness
        self._freezer = freezer
        self._quiesce = quiesce
        self._programs = programs
        self._identity = Identity(kernel, programs)
        self._lock = asyncio.Lock()

    async def renew(self, request: Request) -> dict[str, Any]:
        """Do all steps; return their names and what went wrong without being a danger.

        Raises:
            AgentError: a step failed; those after it were not begun. Before the thaw, the dead man stays.
        """
        async with self._lock:
            held, was_frozen = [], False
            if request.still is not None:
                self._stillness.hold_at_once(request.still)
                was_frozen = await self._freezer.thaw()  # systemd may have to write to stop a timer
                await self._stillness.stop_timers()
                held.append("still")
            _step("reseed the kernel's randomness", lambda: self._kernel.reseed(request.entropy))
            _step("set the clock", lambda: self._kernel.set_clock(request.now_ns))
            was_frozen = await self._freezer.thaw() or was_frozen
            run_dir = self._kernel.path(GENERATION).parent
            _step(f"make {run_dir}", lambda: run_dir.mkdir(0o755, parents=True, exist_ok=True))
            notes = await self._quiesce.let_go("restored")
            done = [*held, "entropy", "clock", "thaw", "release"]
            if request.hostname is not None:
                notes += await self._identity.renew(request.hostname)
                done.append("identity")
            forget_names()
            _step("tell the generation", lambda: self._write_generation(request))
            done.append("generation")
            notes += await self._run_hooks(request)
        for note in notes:
            _log.warning("renewal for %s: %s", request.reason, note)
        return {"done": done, "was_frozen": was_frozen, "notes": notes}

    def _write_generation(self, request: Request) -> None:
        content = {
            "generation": request.generation,
            "reason": request.reason,
            "at": datetime.now(timezone.utc).isoformat(),  # noqa: UP017  # UTC is new in 3.11
        }
        replace_file(self._kernel.path(GENERATION), json.dumps(content).encode() + b"\n")

    async def _run_hooks(self, request: Request) -> list[str]:
        """Run the programs in on-restore.d, one after the other; return which of them failed, and how."""
        env = {
            "TORPOR_RESTORE_REASON": request.reason,
            "TORPOR_GENERATION": str(request.generation),
        }
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _HOOKS_LIMIT_S
        notes = []
        for hook in _hooks(str(self._kernel.path(HOOKS))):
            limit_s = min(_HOOK_LIMIT_S, deadline - loop.time())
            if limit_s <= 0:
                notes.append(f"{hook} was not run: those before it took {_HOOKS_LIMIT_S:g} s")
                continue
            try:
                status, output = await self._programs.run(
                    [hook, request.reason], timeout_s=limit_s, env=env
                )
            except AgentError as exc:
                notes.append(str(exc))
                continue
            if status != 0:
                notes.append(f"{hook} ended with status {status}: {output[-200:].strip()}")
        return notes


def _hooks(folder: str) -> list[str]:
    """Return the programs in `folder` in the order of their names; hidden names and backups are passed over."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = [f"{folder}/{name}" for name in names if name[0] != "." and name[-1] != "~"]
    return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]


def _step(what: str, action: Callable[[], object]) -> None:
    try:
        action()
    except OSError as exc:
        raise AgentError(
            errors.FAILED, f"{what}: {exc.strerror or exc}", errno=errors.name_of(exc)
        ) from exc
