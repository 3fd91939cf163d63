"""The only SQL: tables, migrations and queries that return the plain values of `torpor.model`."""
