"""Rows of sandboxes: one a sandbox, written before an act (intent) and after it (outcome)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, insert, or_, select, update
from sqlalchemy.exc import DatabaseError

from torpor.base.ids import check_id
from torpor.db.database import Database, translate
from torpor.db.tables import sandbox
from torpor.errors import InvalidRequest
from torpor.layers.merges import Merges
from torpor.model import (
    SandboxFilter,
    SandboxId,
    SandboxInfo,
    SandboxPage,
    SandboxState,
    SnapshotId,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_METADATA_SCAN = 500


@dataclass(frozen=True, slots=True)
class MachineLayers:
    """What a sandbox's machine stands on, by layer id."""

    disk: tuple[str, ...] = ()
    """Immutable overlays over the template's disk, the oldest first."""
    active: str | None = None
    """The overlay that takes its writes."""
    next_active: str | None = None
    """The overlay that a snapshot is about to switch to: which of the two is in use, the VMM tells."""
    taking: SnapshotId | None = None
    """The snapshot that is being taken; whether it came to be, its manifest tells."""
    image: SnapshotId | None = None
    """The snapshot whose RAM image its VMM maps; None after a cold boot."""
    ram: tuple[str, ...] = ()
    """RAM layers that make its memory as of the last snapshot; empty before the first."""
    session: tuple[str, ...] = ()
    """Those of `ram` that were written since its VMM started."""
    volumes_mode: str | None = None
    """What a rollback that is under way was told to do with the volumes, as `model_volumes.VolumesMode`."""

    @property
    def ids(self) -> frozenset[str]:
        """All layers that it needs."""
        one = {name for name in (self.active, self.next_active) if name}
        return frozenset({*self.disk, *self.ram, *one})

    def shortened(self, merges: Merges) -> MachineLayers:
        """Return the same with fewer RAM layers, where merged ones stand for some of them.

        `session` is the end of `ram` and stays that; a merged layer that begins before it belongs to it whole.
        """
        ram = merges.shortest(self.ram)
        missing = len(merges.first_layers(self.session))
        start = len(ram)
        while missing > 0:
            start -= 1
            missing -= len(merges.first_layers((ram[start],)))
        return replace(self, ram=ram, session=ram[start:])


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """A sandbox as the daemon keeps it: what users see, and what only we need."""

    info: SandboxInfo
    epoch: int = 0
    """Of the guest channel: raised at each connect, never used twice."""
    ttl_left: timedelta | None = None
    """What is left of the TTL while it does not run down."""
    layers: MachineLayers = MachineLayers()

    def __post_init__(self) -> None:
        """Let `info` say what `ttl_left` is."""
        left = None if self.ttl_left is None else self.ttl_left.total_seconds()
        if self.info.ttl_left_seconds != left:
            object.__setattr__(self, "info", replace(self.info, ttl_left_seconds=left))

    def with_info(self, **changes: Any) -> SandboxRow:
        """Return a copy with these fields of `info` changed."""
        return replace(self, info=replace(self.info, **changes))


class SandboxRows:
    """Reads and writes sandbox rows. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.on_write: Callable[[SandboxInfo], None] = lambda _info: None
        """Told of each row that is durable, in the thread that wrote it."""

    def insert(self, row: SandboxRow) -> None:
        """Add a row."""
        self._write(insert(sandbox).values(**_values(row)))
        self.on_write(row.info)

    def save(self, row: SandboxRow) -> None:
        """Write all of a row that exists."""
        self._write(update(sandbox).where(sandbox.c.id == row.info.id).values(**_values(row)))
        self.on_write(row.info)

    def get(self, sandbox_id: SandboxId) -> SandboxRow | None:
        """Return one row."""
        with self._database.begin() as connection:
            found = (
                connection.execute(select(sandbox).where(sandbox.c.id == sandbox_id))
                .mappings()
                .first()
            )
        return None if found is None else _row(found)

    def living(self) -> list[SandboxRow]:
        """Return all rows that are not deleted, oldest first."""
        with self._database.begin() as connection:
            found = connection.execute(
                select(sandbox)
                .where(sandbox.c.state != SandboxState.DELETED)
                .order_by(sandbox.c.created_at, sandbox.c.id)
            ).mappings()
            return [_row(row) for row in found]

    def page(self, query: SandboxFilter) -> SandboxPage:
        """Return one page, newest first. Raises `InvalidRequest` for a cursor that is not ours."""
        wanted = query.states or tuple(s for s in SandboxState if s is not SandboxState.DELETED)
        conditions: list[ColumnElement[bool]] = [sandbox.c.state.in_(wanted)]
        if query.template is not None:
            conditions.append(sandbox.c.template == query.template)
        if query.workspace is not None:
            conditions.append(sandbox.c.workspace == query.workspace)
        after = _decode_cursor(query.cursor) if query.cursor else None
        items: list[SandboxInfo] = []
        with self._database.begin() as connection:
            while True:
                here = list(conditions)
                if after is not None:
                    here.append(
                        or_(
                            sandbox.c.created_at < after[0],
                            and_(sandbox.c.created_at == after[0], sandbox.c.id < after[1]),
                        )
                    )
                size = _METADATA_SCAN if query.metadata else query.limit + 1
                found = (
                    connection.execute(
                        select(sandbox)
                        .where(*here)
                        .order_by(sandbox.c.created_at.desc(), sandbox.c.id.desc())
                        .limit(size)
                    )
                    .mappings()
                    .all()
                )
                for raw in found:
                    info = _row(raw).info
                    if len(items) == query.limit:
                        return SandboxPage(tuple(items), _encode_cursor(items[-1]))
                    if query.metadata.items() <= info.metadata.items():
                        items.append(info)
                    after = (raw["created_at"], raw["id"])
                if len(found) < size:
                    return SandboxPage(tuple(items), None)

    def templates_in_use(self) -> set[str]:
        """Return the digests of the templates that a sandbox needs."""
        with self._database.begin() as connection:
            found = connection.execute(
                select(sandbox.c.template_digest)
                .where(sandbox.c.state != SandboxState.DELETED)
                .distinct()
            )
            return {row[0] for row in found}

    def forget_deleted(self, before: datetime) -> int:
        """Remove the rows of sandboxes deleted before that time; return how many."""
        with self._database.begin() as connection:
            done = connection.execute(
                delete(sandbox).where(
                    sandbox.c.state == SandboxState.DELETED, sandbox.c.deleted_at < micros(before)
                )
            )
            return int(done.rowcount)

    def mark_deleted(self, row: SandboxRow, at: datetime) -> None:
        """Write a row as deleted at that time."""
        self._write(
            update(sandbox)
            .where(sandbox.c.id == row.info.id)
            .values(**_values(row), deleted_at=micros(at))
        )
        self.on_write(row.info)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _write(self, statement: Any) -> None:
        try:
            with self._database.begin() as connection:
                connection.execute(statement)
        except DatabaseError as exc:
            raise translate(exc, str(self._database.engine.url.database)) from exc


def micros(at: datetime) -> int:
    """Return a time as the tables have it."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def _values(row: SandboxRow) -> dict[str, Any]:
    info = row.info
    return {
        "id": info.id,
        "state": str(info.state),
        "template": info.template,
        "template_digest": info.template_digest,
        "vcpus": info.vcpus,
        "ram_mib": info.ram_mib,
        "disk_gib": info.disk_gib,
        "network": info.network,
        "env_names": json.dumps(sorted(info.env_names)),
        "metadata": json.dumps(dict(info.metadata), sort_keys=True),
        "ttl_seconds": info.ttl_seconds,
        "ttl_left_us": None if row.ttl_left is None else row.ttl_left // timedelta(microseconds=1),
        "on_timeout": info.on_timeout,
        "created_at": micros(info.created_at),
        "expires_at": None if info.expires_at is None else micros(info.expires_at),
        "boot_mode": info.boot_mode,
        "boot_ms": info.boot_ms,
        "driver": info.driver,
        "accel": info.accel,
        "error": info.error,
        "epoch": row.epoch,
        "idle_seconds": info.idle_seconds,
        "parent_snapshot": info.parent_snapshot,
        "generation": info.generation,
        "layers": json.dumps(asdict(row.layers), sort_keys=True),
        "workspace": info.workspace,
    }


def _row(raw: Any) -> SandboxRow:
    created_at = _time(raw["created_at"])
    assert created_at is not None
    left = raw["ttl_left_us"]
    return SandboxRow(
        SandboxInfo(
            id=SandboxId(raw["id"]),
            state=SandboxState(raw["state"]),
            template=raw["template"],
            template_digest=raw["template_digest"],
            vcpus=raw["vcpus"],
            ram_mib=raw["ram_mib"],
            disk_gib=raw["disk_gib"],
            network=raw["network"],
            env_names=tuple(json.loads(raw["env_names"])),
            metadata=json.loads(raw["metadata"]),
            ttl_seconds=raw["ttl_seconds"],
            on_timeout=raw["on_timeout"],
            created_at=created_at,
            expires_at=_time(raw["expires_at"]),
            boot_mode=raw["boot_mode"],
            boot_ms=raw["boot_ms"],
            driver=raw["driver"],
            accel=raw["accel"],
            error=raw["error"],
            idle_seconds=raw["idle_seconds"],
            parent_snapshot=raw["parent_snapshot"],
            generation=raw["generation"],
            workspace=raw["workspace"],
        ),
        epoch=raw["epoch"],
        ttl_left=None if left is None else timedelta(microseconds=left),
        layers=_layers(json.loads(raw["layers"])),
    )


def _layers(raw: dict[str, Any]) -> MachineLayers:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()
    }
    return MachineLayers(**values)


def _encode_cursor(info: SandboxInfo) -> str:
    return (
        base64.urlsafe_b64encode(f"{micros(info.created_at)} {info.id}".encode())
        .decode()
        .rstrip("=")
    )


def _decode_cursor(text: str) -> tuple[int, str]:
    try:
        padded = text + "=" * (-len(text) % 4)
        at, _, last = (
            base64.b64decode(padded, altchars=b"-_", validate=True).decode().partition(" ")
        )
        return int(at), check_id(last, "sbx", "sandbox")
    except (ValueError, binascii.Error, UnicodeError, InvalidRequest) as exc:
        raise InvalidRequest(
            f"the cursor {text!r} is not one of ours",
            hint="use next_cursor of the page before, unchanged",
        ) from exc
