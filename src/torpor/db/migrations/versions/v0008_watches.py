"""Watches, and which snapshots are known to be good."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "watch",
        sa.Column("sandbox_id", sa.String(32), primary_key=True),
        sa.Column("next_at", sa.BigInteger, nullable=False),
        sa.Column("info", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
    )
    op.create_table(
        "good_snapshot",
        sa.Column("snapshot_id", sa.String(32), primary_key=True),
        sa.Column("found_by", sa.String(64), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("found_at", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop them."""
    for name in ("good_snapshot", "watch"):
        op.drop_table(name)
