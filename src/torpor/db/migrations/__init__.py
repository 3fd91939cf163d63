"""Alembic's scripts: how a database of an earlier version becomes one of this version."""
