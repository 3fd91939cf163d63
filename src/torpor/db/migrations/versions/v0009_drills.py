"""Drills, and the schedules that begin them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "drill",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("sandbox_id", sa.String(32)),
        sa.Column("snapshot_id", sa.String(32), nullable=False),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("info", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("notes", sa.Text, nullable=False),
    )
    op.create_index("ix_drill_sandbox_id_created_at", "drill", ["sandbox_id", "created_at"])
    op.create_table(
        "drill_schedule",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("next_at", sa.BigInteger, nullable=False),
        sa.Column("info", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Drop them."""
    for name in ("drill_schedule", "drill"):
        op.drop_table(name)
