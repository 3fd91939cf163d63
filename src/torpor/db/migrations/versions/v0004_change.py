"""Changes: transactions on sandboxes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "change",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("sandbox_id", sa.String(32), nullable=False),
        sa.Column("open_on", sa.String(32), unique=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("target", sa.Text),
        sa.Column("is_bad_target", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("info", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("notes", sa.Text, nullable=False),
        sa.Column("report", sa.Text, nullable=False),
    )
    op.create_index("ix_change_sandbox_id_created_at", "change", ["sandbox_id", "created_at"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("change")
