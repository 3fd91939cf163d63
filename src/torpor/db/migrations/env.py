"""Run by Alembic: applies the scripts over the connection that `Database` hands in."""

from __future__ import annotations

from alembic import context

from torpor.db.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
