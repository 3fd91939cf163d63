"""Databases: PostgreSQL in a sandbox of its own, its data on a volume, reached through the guest channel."""
