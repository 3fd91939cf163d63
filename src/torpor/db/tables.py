"""The tables. Times are integer microseconds since 1970 in UTC; JSON is text with sorted keys."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, Text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

sandbox = Table(
    "sandbox",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("template", String(64), nullable=False),
    Column("template_digest", String(64), nullable=False),
    Column("vcpus", Integer, nullable=False),
    Column("ram_mib", Integer, nullable=False),
    Column("disk_gib", Integer, nullable=False),
    Column("network", String(16), nullable=False),
    # names only: the values may be secrets and live in the guest alone
    Column("env_names", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("ttl_seconds", Integer),
    Column("ttl_left_us", BigInteger),
    Column("on_timeout", String(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("deleted_at", BigInteger),
    Column("boot_mode", String(16)),
    Column("boot_ms", Integer),
    Column("driver", String(16), nullable=False),
    Column("accel", String(16)),
    Column("error", Text),
    Column("epoch", Integer, nullable=False),
    Column("idle_seconds", Integer),
    Column("parent_snapshot", String(32)),
    Column("generation", Integer, nullable=False),
    # the machine's layers, as `db.sandboxes.MachineLayers`
    Column("layers", Text, nullable=False),
    Column("workspace", String(64), nullable=False, server_default="default"),
)
Index("ix_sandbox_workspace", sandbox.c.workspace)
Index("ix_sandbox_created_at_id", sandbox.c.created_at, sandbox.c.id)
Index("ix_sandbox_state", sandbox.c.state)

protection = Table(
    "protection",
    metadata,
    Column("snapshot_id", String(32), primary_key=True),
    # who needs it: a change's id, say; each may need it once
    Column("holder", String(64), primary_key=True),
    Column("reason", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
Index("ix_protection_holder", protection.c.holder)

change = Table(
    "change",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("sandbox_id", String(32), nullable=False),
    # the sandbox's id while the change is open, else null: so that there is one at a time
    Column("open_on", String(32), unique=True),
    Column("state", String(16), nullable=False),
    # what is asked for when the same is tried again; folded, see `db.changes.folded`
    Column("target", Text),
    Column("is_bad_target", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    # `model_changes.ChangeInfo` and `ChangeSpec`
    Column("info", Text, nullable=False),
    Column("spec", Text, nullable=False),
    # what the transaction itself has to know of its steps
    Column("notes", Text, nullable=False),
    Column("report", Text, nullable=False),
)
Index("ix_change_sandbox_id_created_at", change.c.sandbox_id, change.c.created_at)

memory_move = Table(
    "memory_move",
    metadata,
    Column("sandbox_id", String(32), primary_key=True),
    # `model_memory.MachineMove`, until memory has followed it
    Column("move", Text),
    Column("note", Text, nullable=False),
)
volume = Table(
    "volume",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("workspace", String(64), nullable=False),
    # unique in its workspace
    Column("name", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("parent", String(32)),
    Column("bound_to", String(32)),
    Column("created_at", BigInteger, nullable=False),
    Column("used_bytes", BigInteger),
    Column("used_at", BigInteger),
    # layers and flags, as `db.volumes.VolumeLayers`
    Column("layers", Text, nullable=False),
    # who has it: the lease, as a list of `model_volumes.VolumeHolder`
    Column("holders", Text, nullable=False),
)
Index("uq_volume_workspace_name", volume.c.workspace, volume.c.name, unique=True)

volume_snapshot = Table(
    "volume_snapshot",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("volume_id", String(32), nullable=False),
    Column("label", String(128)),
    Column("reason", String(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("clean", Integer, nullable=False),
    # the layers that it is, with their digests
    Column("disk", Text, nullable=False),
)
Index("ix_volume_snapshot_volume_id", volume_snapshot.c.volume_id)

database = Table(
    "database",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("workspace", String(64), nullable=False),
    # unique in its workspace
    Column("name", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    # the rest of `db.databases.DatabaseRow`; no password
    Column("facts", Text, nullable=False),
)
Index("uq_database_workspace_name", database.c.workspace, database.c.name, unique=True)
