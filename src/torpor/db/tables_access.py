"""Tables of who may come in, and of requests that were sent with a key."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    UniqueConstraint,
)

from torpor.db.tables import metadata

token = Table(
    "token",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("workspace", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("prefix", String(16), nullable=False, unique=True),
    # SHA-256 of 256 random bits: nobody finds the token from it, and no salt is needed
    Column("digest", LargeBinary(32), nullable=False),
    Column("scope", String(8), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("last_used_at", BigInteger),
    UniqueConstraint("workspace", "name"),
)

keyed_request = Table(
    "keyed_request",
    metadata,
    Column("workspace", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    # a keyed hash of method, path and body: the body may hold secrets
    Column("fingerprint", LargeBinary(32), nullable=False),
    # the ids of what it makes come from this, so that they are known before anything is made
    Column("seed", LargeBinary(32), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    # both null until it was answered
    Column("status", Integer),
    Column("answer", LargeBinary),
)
Index("ix_keyed_request_created_at", keyed_request.c.created_at)
