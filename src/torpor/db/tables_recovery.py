"""Tables of what proves snapshots: drills, their schedules, watches, and which snapshots are known to be good."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, String, Table, Text

from torpor.db.tables import metadata

drill = Table(
    "drill",
    metadata,
    Column("id", String(32), primary_key=True),
    # the sandbox that the snapshot is of; null: a template's
    Column("sandbox_id", String(32)),
    Column("snapshot_id", String(32), nullable=False),
    Column("workspace", String(64), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    # `model_drills.DrillInfo` and `DrillSpec`
    Column("info", Text, nullable=False),
    Column("spec", Text, nullable=False),
    # what its steps have to know of each other, the clones above all
    Column("notes", Text, nullable=False),
)
Index("ix_drill_sandbox_id_created_at", drill.c.sandbox_id, drill.c.created_at)

drill_schedule = Table(
    "drill_schedule",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("next_at", BigInteger, nullable=False),
    # `model_drills.ScheduleInfo` and `DrillSpec`
    Column("info", Text, nullable=False),
    Column("spec", Text, nullable=False),
)

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
