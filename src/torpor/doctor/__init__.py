"""`torpor doctor`: what this host has, what it lacks, and the command that mends it."""

from torpor.doctor.checks import Check, collect, collect_now

__all__ = ["Check", "collect", "collect_now"]
