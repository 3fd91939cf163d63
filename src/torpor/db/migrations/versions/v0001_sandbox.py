"""The sandbox table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create it."""
    op.create_table(
        "sandbox",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("template", sa.String(64), nullable=False),
        sa.Column("template_digest", sa.String(64), nullable=False),
        sa.Column("vcpus", sa.Integer, nullable=False),
        sa.Column("ram_mib", sa.Integer, nullable=False),
        sa.Column("disk_gib", sa.Integer, nullable=False),
        sa.Column("network", sa.String(16), nullable=False),
        sa.Column("env_names", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("ttl_seconds", sa.Integer),
        sa.Column("ttl_left_us", sa.BigInteger),
        sa.Column("on_timeout", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("deleted_at", sa.BigInteger),
        sa.Column("boot_mode", sa.String(16)),
        sa.Column("boot_ms", sa.Integer),
        sa.Column("driver", sa.String(16), nullable=False),
        sa.Column("accel", sa.String(16)),
        sa.Column("error", sa.Text),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("idle_seconds", sa.Integer),
        sa.Column("parent_snapshot", sa.String(32)),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("layers", sa.Text, nullable=False),
    )
    op.create_index("ix_sandbox_created_at_id", "sandbox", ["created_at", "id"])
    op.create_index("ix_sandbox_state", "sandbox", ["state"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("sandbox")
