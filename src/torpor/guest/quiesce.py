"""What the host asks of a guest to bring its programs to rest, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast, get_args

from torpor.base.masking import masked
from torpor.errors import GuestFailed
from torpor.guest.calls import Calls
from torpor.model_quiesce import HookKind, HookResult, HookSpec, HookState, QuiesceSpec

_SLACK_S: Final = 150.0
"""Beyond the time for hooks: versions, cursor, and the releases after a failure."""
_CONFIRM_LIMIT_S: Final = 120.0
_RELEASE_LIMIT_S: Final = 120.0
_HOOKS_MOST: Final = 64
_ITEMS_MOST: Final = 32
_TEXT_MOST: Final = 500
_SECONDS_MOST: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """What a guest says of its programs' rest: bounded and cleaned, not believed further than that."""

    token: str
    held: bool
    reason: str
    left_seconds: float
    """It stays so at least so long, unless a program that holds it dies."""
    hooks: tuple[HookResult, ...]
    versions: Mapping[str, str | None]
    cursor: str | None
    notes: tuple[str, ...]


class QuiesceCalls(Calls):
    """The part of the client about quiescing."""

    async def quiesce(self, spec: QuiesceSpec) -> Quiet:
        """See `Guest.quiesce`."""
        if "quiesce" not in self._capabilities():
            raise GuestFailed(
                "the agent in the machine cannot quiesce: it is of an older version",
                hint="take the snapshot with consistency=filesystem, or rebuild the template",
            )
        params: dict[str, object] = {
            "hooks": [_hook(hook) for hook in spec.hooks],
            "discover": spec.discover,
            "user_hooks": spec.user_hooks,
            "timeout_s": spec.timeout_seconds,
            "versions": dict(spec.versions),
            "cursor": spec.cursor,
        }
        limit_s = spec.timeout_seconds + _SLACK_S
        if spec.versions:
            limit_s += 10.0 * len(spec.versions)
        return quiet(await self._channel.call("quiesce", params, limit_s=limit_s))

    async def quiesce_confirm(self, token: str) -> Quiet:
        """See `Guest.quiesce_confirm`."""
        answer = await self._channel.call(
            "quiesce.confirm", {"token": token}, limit_s=_CONFIRM_LIMIT_S
        )
        return quiet(answer)

    async def quiesce_release(self, token: str | None, outcome: str) -> Quiet:
        """See `Guest.quiesce_release`."""
        if "quiesce" not in self._capabilities():
            return quiet({})
        params: dict[str, object] = {"token": token, "outcome": outcome}
        return quiet(await self._channel.call("quiesce.release", params, limit_s=_RELEASE_LIMIT_S))


def _hook(hook: HookSpec) -> dict[str, object]:
    said: dict[str, object] = {
        "name": hook.name,
        "kind": hook.kind,
        "required": hook.required,
        "prepare_timeout_s": hook.prepare_timeout_seconds,
        "hold_max_s": hook.hold_max_seconds,
        "order": hook.order,
        "paths": list(hook.paths),
        "exclude": list(hook.exclude),
    }
    for key in ("prepare", "hold", "confirm", "release", "user", "address", "port"):
        said[key] = getattr(hook, key)
    said["password_file"] = hook.password_file
    return {key: value for key, value in said.items() if value not in (None, [])}


def quiet(answer: Mapping[str, Any]) -> Quiet:
    """Return what the guest's answer says."""
    hooks, versions = answer.get("hooks"), answer.get("versions")
    notes, left = answer.get("notes"), answer.get("left_s")
    cursor_note = _clean(answer.get("cursor_note"))
    results = [_result(item) for item in (hooks if isinstance(hooks, list) else [])[:_HOOKS_MOST]]
    told = tuple(map(_late, results))
    late = [
        f"hook {now.name}: {now.message}"
        for was, now in zip(results, told, strict=True)
        if was != now
    ]
    return Quiet(
        token=_clean(answer.get("token"))[:64],
        held=answer.get("held") is True,
        reason=late[0] if late else _clean(answer.get("reason")),
        left_seconds=min(_number(left) or 0.0, _SECONDS_MOST),
        hooks=told,
        versions={
            _clean(name)[:64]: None if value is None else _clean(value)
            for name, value in list((versions if isinstance(versions, dict) else {}).items())[
                :_ITEMS_MOST
            ]
        },
        cursor=None if answer.get("cursor") is None else _clean(answer.get("cursor")),
        notes=(
            *(_clean(note) for note in (notes if isinstance(notes, list) else [])[:_ITEMS_MOST]),
            *((f"cursor: {cursor_note}",) if cursor_note else ()),
        ),
    )


def _late(hook: HookResult) -> HookResult:
    """Return what came of a hook; of one that took hold when the time ran out, that it failed."""
    if hook.state != "skipped" or hook.hold_ms is None:
        return hook
    took = f"it took {hook.hold_ms / 1000:.1f} s and did not hold before the time of all was over"
    return replace(hook, state="failed", failed_phase="hold", message=took)


def _result(item: Any) -> HookResult:
    if not isinstance(item, dict):
        raise GuestFailed("the guest agent's answer makes no sense: a hook is no object")
    kind, state = item.get("kind"), item.get("state")
    if kind not in (*get_args(HookKind), "program"):
        raise GuestFailed(f"the guest agent knows a hook of kind {str(kind)[:40]!r}")
    if state not in get_args(HookState):
        state = "skipped"
    return HookResult(
        name=_clean(item.get("name"))[:64],
        kind=str(kind),
        required=item.get("required") is not False,
        state=cast("HookState", state),
        message=_clean(item.get("message")),
        failed_phase=_clean(item.get("failed_phase"))[:16],
        release_problem=_clean(item.get("release_problem")),
        prepare_ms=_number(item.get("prepare_ms")),
        hold_ms=_number(item.get("hold_ms")),
        held_ms=_number(item.get("held_ms")),
        release_ms=_number(item.get("release_ms")),
    )


def _clean(value: object) -> str:
    """Return text from the guest in one line, cut, without what looks like a secret or cannot be seen."""
    text = "" if value is None else masked(str(value)[: _TEXT_MOST * 4])[:_TEXT_MOST]
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown[:_TEXT_MOST]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        return None
    return float(value)
