"""Rows of tokens. The token itself is in none of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import DatabaseError, IntegrityError

from torpor.db.database import Database, translate
from torpor.db.tables_access import token
from torpor.errors import Conflict
from torpor.model_access import Scope, TokenId, TokenInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as it is kept."""

    info: TokenInfo
    digest: bytes
    """SHA-256 of the whole token."""


class TokenRows:
    """Reads and writes token rows. Every method blocks, and is durable when it returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[TokenRow]:
        """Return every token, the oldest first."""
        with self._database.begin() as connection:
            found = connection.execute(select(token).order_by(token.c.created_at, token.c.id))
            return [_row(row) for row in found.mappings()]

    def insert(self, row: TokenRow) -> None:
        """Add a token. Raises `Conflict` when its workspace has one of that name."""
        try:
            self._write(insert(token).values(**_values(row)))
        except IntegrityError as exc:
            raise Conflict(
                f"there is a token {row.info.name!r} already",
                hint=f"choose another name, or remove it: torpor token rm {row.info.name}",
            ) from exc

    def delete(self, token_id: TokenId) -> None:
        """Remove a token."""
        self._write(delete(token).where(token.c.id == token_id))

    def note_use(self, token_id: TokenId, at: datetime) -> None:
        """Write down when a token was last used."""
        self._write(update(token).where(token.c.id == token_id).values(last_used_at=_micros(at)))

    def _write(self, statement: Any) -> None:
        try:
            with self._database.begin() as connection:
                connection.execute(statement)
        except IntegrityError:
            raise
        except DatabaseError as exc:
            raise translate(exc, str(self._database.engine.url.database)) from exc


def _micros(at: datetime | None) -> int | None:
    return None if at is None else (at - _EPOCH) // timedelta(microseconds=1)


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def _values(row: TokenRow) -> dict[str, Any]:
    info = row.info
    return {
        "id": info.id,
        "workspace": info.workspace,
        "name": info.name,
        "prefix": info.prefix,
        "digest": row.digest,
        "scope": str(info.scope),
        "created_at": _micros(info.created_at),
        "expires_at": _micros(info.expires_at),
        "last_used_at": _micros(info.last_used_at),
    }


def _row(raw: Any) -> TokenRow:
    created_at = _time(raw["created_at"])
    assert created_at is not None
    return TokenRow(
        TokenInfo(
            id=TokenId(raw["id"]),
            name=raw["name"],
            prefix=raw["prefix"],
            scope=Scope(raw["scope"]),
            workspace=raw["workspace"],
            created_at=created_at,
            expires_at=_time(raw["expires_at"]),
            last_used_at=_time(raw["last_used_at"]),
        ),
        raw["digest"],
    )
