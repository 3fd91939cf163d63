"""What a request may say: refused here, before anything is looked up or made."""

from __future__ import annotations

from collections.abc import Mapping

from torpor.base.ids import check_id
from torpor.errors import InvalidRequest
from torpor.memory import checks
from torpor.model import ELSEWHERE_MARK, OnTimeout, RestoreSpec, SandboxSpec, SnapshotId
from torpor.model_quiesce import QuiesceSpec, quiesce_spec
from torpor.sandboxes.capture import Wish

FORKS_MOST = 100
_METADATA_MOST = 64
_ENV_MOST = 1024
_VALUE_MOST = 4096
_ENV_VALUE_MOST = 128 << 10
_SECONDS_MOST = 10 * 365 * 86400
_LABEL_MOST = 128


def check_spec(spec: SandboxSpec) -> None:
    """Raise `InvalidRequest` for a create that cannot be right."""
    _check_network(spec.network)
    _check_pairs(spec.env, spec.metadata)
    check_lease(spec.ttl_seconds, spec.on_timeout)
    check_idle(spec.idle_seconds)


def check_restore(spec: RestoreSpec) -> None:
    """Raise `InvalidRequest` for a restore or fork that cannot be right."""
    if spec.network is not None:
        _check_network(spec.network)
    _check_pairs(spec.env, spec.metadata)
    check_lease(spec.ttl_seconds, spec.on_timeout)
    check_idle(spec.idle_seconds)


def check_snapshot(wish: Wish) -> None:
    """Raise `InvalidRequest` for a snapshot that cannot be right."""
    if wish.label is not None and not (
        0 < len(wish.label) <= _LABEL_MOST
        and wish.label.isprintable()
        and wish.label == wish.label.strip()
    ):
        raise InvalidRequest(
            f"the label {wish.label[:80]!r} cannot be used",
            hint="use 1 to 128 printable characters",
        )
    _check_pairs({}, wish.metadata or {})


def check_quiesce(consistency: str, quiesce: QuiesceSpec | None) -> QuiesceSpec:
    """Return how the machine's programs are brought to rest, if they are.

    Raises:
        InvalidRequest: the spec cannot be right, or is given without `consistency="application"`.
    """
    if quiesce is not None and consistency != "application":
        raise InvalidRequest(
            f"quiesce is for consistency 'application'; {consistency!r} was asked for",
            hint="ask for consistency=application, or leave quiesce out",
        )
    return quiesce_spec(quiesce)


def check_snapshot_id(snapshot_id: str) -> SnapshotId:
    """Return the id. Raises `InvalidRequest` when it is none."""
    return SnapshotId(check_id(snapshot_id, "snap", "snapshot"))


def check_memory_choice(memory: str) -> None:
    """Raise `InvalidRequest` unless a rollback can come back so."""
    if memory not in ("ram", "cold"):
        raise InvalidRequest(
            f"memory is {memory!r}; 'ram' or 'cold' is wanted", hint="leave it out"
        )


def check_lease(ttl_seconds: int | None, on_timeout: OnTimeout | None) -> None:
    """Raise `InvalidRequest` unless these can be a lease."""
    if on_timeout not in (None, "delete", "hibernate"):
        raise InvalidRequest(f"on_timeout is {on_timeout!r}; 'delete' or 'hibernate' is wanted")
    _check_seconds("ttl_seconds", ttl_seconds, "to end it now, delete it")


def check_idle(idle_seconds: int | None) -> None:
    """Raise `InvalidRequest` unless this can be a time without work."""
    _check_seconds("idle_seconds", idle_seconds, "to put it to sleep now, hibernate it")


def _check_seconds(name: str, value: int | None, hint: str) -> None:
    if value is not None and not 1 <= value <= _SECONDS_MOST:
        raise InvalidRequest(f"{name} is {value}; 1 to {_SECONDS_MOST} is wanted", hint=hint)


def _check_network(network: str) -> None:
    if network not in ("user", "none"):
        raise InvalidRequest(f"network is {network!r}; 'user' or 'none' is wanted")


def check_agent(name: str) -> str:
    """Return a name that an agent may be given. Raises `InvalidRequest`."""
    if ELSEWHERE_MARK in name:
        raise InvalidRequest(f"the agent's name {name[:80]!r} has {ELSEWHERE_MARK!r} in it")
    return checks.name(name, "the agent's name")


def _check_pairs(env: Mapping[str, str], metadata: Mapping[str, str]) -> None:
    for what, pairs, most, value_most in (
        ("metadata", metadata, _METADATA_MOST, _VALUE_MOST),
        ("env", env, _ENV_MOST, _ENV_VALUE_MOST),
    ):
        if len(pairs) > most:
            raise InvalidRequest(
                f"{what} has {len(pairs)} entries; at most {most} are wanted", hint="give fewer"
            )
        for key, value in pairs.items():
            if not 0 < len(key) <= 256 or len(value) > value_most:
                raise InvalidRequest(
                    f"{what} has an entry whose name is empty or that is too long: {key[:80]!r}"
                )
            try:
                (key + value).encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as exc:
                raise InvalidRequest(
                    f"{what} {key[:80]!r} has a surrogate that stands for no byte",
                    hint="raw bytes are written as U+DC80 to U+DCFF",
                ) from exc
            if (what, key) == ("metadata", "agent"):
                check_agent(value)
            if what == "env" and ("=" in key or "\0" in key + value):
                raise InvalidRequest(f"{key!r} cannot be the name of an environment variable")
