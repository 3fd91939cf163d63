"""Machines that moved and that their agents' memory has to follow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "memory_move",
        sa.Column("sandbox_id", sa.String(32), primary_key=True),
        sa.Column("move", sa.Text),
        sa.Column("note", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("memory_move")
