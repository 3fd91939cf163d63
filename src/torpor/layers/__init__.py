"""Immutable files that snapshots and sandboxes share: disk overlays and RAM."""
