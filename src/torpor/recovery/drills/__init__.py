"""Drills: a snapshot is restored into a clone that nobody else sees, looked at, timed and thrown away."""
