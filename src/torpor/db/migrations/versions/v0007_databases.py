"""Databases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "database",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
    )
    op.create_index("uq_database_workspace_name", "database", ["workspace", "name"], unique=True)


def downgrade() -> None:
    """Drop it."""
    op.drop_table("database")
