"""The programs of a machine at rest around a capture, and an honest answer whether they were.

The order is prepare, hold, freeze, capture, thaw, confirm, release: hooks never run while file systems are frozen.
A snapshot is `application` only if every required hook held before the capture and, asked again, after it. A machine
that falls asleep cannot be asked after; there it is asked once more when it is frozen, says for how long it holds
by itself, and must stand still within that time.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from typing import Final

from torpor.base.aio import finish
from torpor.errors import (
    Conflict,
    GuestFailed,
    GuestUnreachable,
    InvalidRequest,
    LimitExceeded,
    OperationTimeout,
    QuiesceFailed,
)
from torpor.guest.port import Guest
from torpor.guest.quiesce import Quiet
from torpor.model_quiesce import HookResult, QuiesceReport, QuiesceSpec

_PAUSED: Final = "the sandbox was paused: its programs could not be asked to hold still"
_ASLEEP: Final = "the sandbox slept: its programs could not be asked to hold still"
_REFUSALS: Final = (GuestFailed, InvalidRequest, Conflict, LimitExceeded, OperationTimeout)
_RELEASE_S: Final = 150.0
_MARGIN_S: Final = 1.0
"""How much longer than we need the guest must hold by itself."""

log = logging.getLogger(__name__)


class Rest:
    """One time that a machine's programs are at rest for a capture, or why they are not.

    With `spec` None nothing is asked of them, and there is no report. `guest` is None while the machine is paused.
    """

    def __init__(self, name: str, guest: Guest | None, spec: QuiesceSpec | None) -> None:
        self.report: QuiesceReport | None = None
        self._name = name
        self.guest = guest
        self._spec = spec
        self._held: Quiet | None = None
        """What is held now."""
        self._lapses_at: float | None = None

    async def begin(self) -> None:
        """Prepare and hold.

        Raises:
            QuiesceFailed: a required hook failed, and lesser is not wanted. Everything is released.
            GuestUnreachable: the agent does not answer.
        """
        if self._spec is None:
            return
        if self.guest is None:
            self.report = unasked(self._name, self._spec, asleep=False)
            return
        try:
            quiet = await self.guest.quiesce(self._spec)
        except GuestUnreachable:
            raise
        except _REFUSALS as exc:
            self._fail(exc.message, hint=exc.hint)
            return
        if quiet.held:
            self._held = quiet
        else:
            self._fail(quiet.reason, quiet)

    async def take_lease(self) -> None:
        """Ask, now that it is frozen, for how long it holds by itself. `check_lease` once it stands still."""
        if self._held is None or self.guest is None:
            return
        asked_at = time.monotonic()
        quiet = await self.guest.quiesce_confirm(self._held.token)
        if not quiet.held:
            self._fail(quiet.reason, quiet)
        self._lapses_at = asked_at + quiet.left_seconds - _MARGIN_S

    def check_lease(self) -> None:
        """See, now that the machine stands still and will not run on, that it did so in time."""
        if self._held is None or self._lapses_at is None or self.report is not None:
            return
        if time.monotonic() > self._lapses_at:
            self._fail("it stood still only when its programs may have gone on already", self._held)
        else:
            self.report = replace(_told(self._held, ""), confirmed="lease")

    async def end(self) -> None:
        """After the capture: ask whether it was held all the time, and release.

        Raises:
            QuiesceFailed: it was not, and lesser is not wanted. Everything is released.
        """
        held, self._held = self._held, None
        if held is None or self.guest is None or self._spec is None:
            return
        confirmed = await self.guest.quiesce_confirm(held.token)
        is_kept = confirmed.held or self._spec.on_failure == "downgrade"
        quiet = await self.guest.quiesce_release(held.token, "taken" if is_kept else "failed")
        for hook in quiet.hooks:
            if hook.release_problem:
                log.warning("%s: hook %s: %s", self._name, hook.name, hook.release_problem)
        if confirmed.held:
            self.report = _told(quiet, "")
        else:
            self._fail(confirmed.reason, quiet)

    async def abandon(self) -> None:
        """After a failure: release what is held. If the guest cannot be told, it lets go when its time is over."""
        if self.guest is not None and self._spec is not None:
            with contextlib.suppress(GuestFailed):
                await self.guest.quiesce_release(None, "failed")

    def _fail(self, reason: str, quiet: Quiet | None = None, hint: str | None = None) -> None:
        assert self._spec is not None
        reason = reason or "its programs did not hold still"
        if self._spec.on_failure == "refuse":
            raise refusal(self._name, reason, hint, quiet)
        log.warning("%s: not application-consistent: %s", self._name, reason)
        self.report = (
            QuiesceReport(held=False, reason=reason) if quiet is None else _told(quiet, reason)
        )


async def rehearse(guest: Guest, spec: QuiesceSpec) -> QuiesceReport:
    """Prepare, hold, confirm and release without a snapshot; return what came of it, whether it held or not.

    Raises:
        InvalidRequest, GuestFailed: a hook cannot be right, or the guest cannot do it; nothing was begun.
    """
    quiet = await guest.quiesce(spec)
    if not quiet.held:
        return _told(quiet, quiet.reason)
    try:
        confirmed = await guest.quiesce_confirm(quiet.token)
    except BaseException:
        with contextlib.suppress(GuestFailed):
            await finish(_let_go(guest, quiet.token), within_s=_RELEASE_S)
        raise
    released = await guest.quiesce_release(quiet.token, "test")
    return _told(released, "" if confirmed.held else confirmed.reason or "it did not hold")


async def _let_go(guest: Guest, token: str) -> None:
    await guest.quiesce_release(token, "failed")


def _told(quiet: Quiet, reason: str) -> QuiesceReport:
    return QuiesceReport(
        held=not reason,
        reason=reason,
        confirmed="no" if reason else "after",
        hooks=quiet.hooks,
        versions=quiet.versions,
        cursor=quiet.cursor,
        notes=quiet.notes,
    )


def unasked(name: str, spec: QuiesceSpec, *, asleep: bool) -> QuiesceReport:
    """Return the report on a machine that stands still. Raises `QuiesceFailed` unless lesser is wanted."""
    reason = _ASLEEP if asleep else _PAUSED
    if spec.on_failure == "refuse":
        raise refusal(name, reason, "let it run first, or take it with consistency=filesystem")
    return QuiesceReport(held=False, reason=reason)


def refusal(
    name: str, reason: str, hint: str | None = None, quiet: Quiet | None = None
) -> QuiesceFailed:
    """Return the error that says why there is no snapshot."""
    failed = next((h for h in quiet.hooks if _is_to_blame(h)), None) if quiet else None
    facts: dict[str, object] = {"reason": reason}
    if failed is not None:
        facts |= {"hook": failed.name, "phase": failed.failed_phase, "output": failed.message}
    return QuiesceFailed(
        f"{name} could not be quiesced, so no snapshot was taken: {reason}",
        hint=hint
        or "try its hooks: torpor quiesce test; or take a lesser one: --on-quiesce-failure downgrade",
        **facts,
    )


def _is_to_blame(hook: HookResult) -> bool:
    return hook.required and hook.state in ("failed", "lost")
