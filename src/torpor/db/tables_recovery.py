"""Tables of watches, and of which snapshots are known to be good."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, String, Table, Text

from torpor.db.tables import metadata

watch = Table(
    "watch",
    metadata,
    Column("sandbox_id", String(32), primary_key=True),
    Column("next_at", BigInteger, nullable=False),
    # `model_watches.WatchInfo` and `WatchSpec`
    Column("info", Text, nullable=False),
    Column("spec", Text, nullable=False),
)

good_snapshot = Table(
    "good_snapshot",
    metadata,
    Column("snapshot_id", String(32), primary_key=True),
    # who found it: a change's or a drill's id
    Column("found_by", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("found_at", BigInteger, nullable=False),
)
