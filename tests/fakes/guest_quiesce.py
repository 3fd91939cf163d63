"""The fake guest's programs: they hold still when asked, unless a hook's command is `false`."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

from torpor.errors import Conflict, NotFound
from torpor.guest.quiesce import Quiet
from torpor.model_quiesce import HookResult, QuiesceSpec

_NOTHING = Quiet(
    token="",
    held=False,
    reason="",
    left_seconds=0,
    hooks=(),
    versions={},
    cursor=None,
    notes=(),
)


class FakeQuiesce:
    """The part of `Guest` that is about quiescing."""

    def __init__(self) -> None:
        self.databases = 1
        """How many there are for the hook `sqlite`."""
        self.quiesce_outcomes: list[str] = []
        self.loses_hold = False
        """Whether the next confirmation finds that it did not hold."""
        self._quiet = _NOTHING
        self._is_held = False
        self._lapse: asyncio.TimerHandle | None = None
        self._lapses_at = 0.0

    @property
    def is_quiesced(self) -> bool:
        """Whether something is held."""
        return self._is_held

    async def quiesce(self, spec: QuiesceSpec) -> Quiet:
        """See `Guest.quiesce`."""
        self._check()
        if self._is_held:
            raise Conflict("the machine is quiesced already")
        hooks: list[HookResult] = []
        reason = ""
        for hook in spec.hooks:
            failed = next((p for p in ("prepare", "hold") if getattr(hook, p) == "false"), "")
            hooks.append(
                HookResult(
                    name=hook.name,
                    kind=hook.kind,
                    required=hook.required,
                    state="failed" if failed else "skipped" if reason else "held",
                    failed_phase=failed,
                    message=f"{failed} ended with status 1" if failed else "",
                    prepare_ms=1.0,
                )
            )
            if failed and hook.required and not reason:
                reason = f"hook {hook.name}: {failed} ended with status 1"
        if spec.discover and self.databases:
            hooks.append(HookResult(name="sqlite", kind="sqlite", required=True, state="held"))
        if not reason and not any(hook.state == "held" for hook in hooks):
            reason = "there is no hook that holds anything"
        limits = [hook.hold_max_seconds for hook in spec.hooks] or [30.0]
        loop = asyncio.get_running_loop()
        self._is_held = not reason
        self._lapses_at = loop.time() + min(limits)
        self._quiet = Quiet(
            token=secrets.token_hex(8),
            held=self._is_held,
            reason=reason,
            left_seconds=min(limits) if self._is_held else 0.0,
            hooks=tuple(hooks),
            versions=dict.fromkeys(spec.versions, "1.0"),
            cursor="42" if spec.cursor else None,
            notes=(),
        )
        if self._is_held:
            self._lapse = loop.call_at(self._lapses_at, self._let_all_go, "expired")
        else:
            self.quiesce_outcomes.append("failed")
        return self._quiet

    async def quiesce_confirm(self, token: str) -> Quiet:
        """See `Guest.quiesce_confirm`."""
        self._check()
        self._known(token)
        if self.loses_hold and self._quiet.held:
            self.loses_hold = False
            self._quiet = replace(self._quiet, held=False, reason="hook sqlite: it is gone")
        left = self._lapses_at - asyncio.get_running_loop().time()
        return replace(self._quiet, left_seconds=max(0.0, left) if self._quiet.held else 0.0)

    async def quiesce_release(self, token: str | None, outcome: str) -> Quiet:
        """See `Guest.quiesce_release`."""
        self._check()
        if token is not None:
            self._known(token)
        if self._is_held:
            self.let_go()
            self._let_all_go(outcome)
        return self._quiet

    def _known(self, token: str) -> None:
        if not token or token != self._quiet.token:
            raise NotFound("nothing is held under that token")

    def _let_all_go(self, outcome: str) -> None:
        if self._lapse:
            self._lapse.cancel()
        self._is_held = False
        self.quiesce_outcomes.append(outcome)
        reason = self._quiet.reason or f"it was released: {outcome}"
        self._quiet = replace(self._quiet, held=False, reason=reason)

    def let_go(self) -> None:
        """Thaw it."""
        raise NotImplementedError

    def _check(self) -> None:
        raise NotImplementedError
