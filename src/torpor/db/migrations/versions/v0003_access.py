"""Tokens, workspaces, and requests with a key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; what is there already is in the workspace `default`."""
    op.add_column(
        "sandbox", sa.Column("workspace", sa.String(64), nullable=False, server_default="default")
    )
    op.create_index("ix_sandbox_workspace", "sandbox", ["workspace"])
    op.create_table(
        "token",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("workspace", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False, unique=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("scope", sa.String(8), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
        sa.Column("last_used_at", sa.BigInteger),
        sa.UniqueConstraint("workspace", "name"),
    )
    op.create_table(
        "keyed_request",
        sa.Column("workspace", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("fingerprint", sa.LargeBinary(32), nullable=False),
        sa.Column("seed", sa.LargeBinary(32), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("answer", sa.LargeBinary),
    )
    op.create_index("ix_keyed_request_created_at", "keyed_request", ["created_at"])


def downgrade() -> None:
    """Remove them."""
    op.drop_table("keyed_request")
    op.drop_table("token")
    op.drop_index("ix_sandbox_workspace", "sandbox")
    op.drop_column("sandbox", "workspace")
