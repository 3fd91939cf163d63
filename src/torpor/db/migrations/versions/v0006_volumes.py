"""Volumes and their snapshots."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create them."""
    op.create_table(
        "volume",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("parent", sa.String(32)),
        sa.Column("bound_to", sa.String(32)),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("used_bytes", sa.BigInteger),
        sa.Column("used_at", sa.BigInteger),
        sa.Column("layers", sa.Text, nullable=False),
        sa.Column("holders", sa.Text, nullable=False),
    )
    op.create_index("uq_volume_workspace_name", "volume", ["workspace", "name"], unique=True)
    op.create_table(
        "volume_snapshot",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("volume_id", sa.String(32), nullable=False),
        sa.Column("label", sa.String(128)),
        sa.Column("reason", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("clean", sa.Integer, nullable=False),
        sa.Column("disk", sa.Text, nullable=False),
    )
    op.create_index("ix_volume_snapshot_volume_id", "volume_snapshot", ["volume_id"])


def downgrade() -> None:
    """Drop them."""
    op.drop_table("volume_snapshot")
    op.drop_table("volume")
