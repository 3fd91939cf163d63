"""Torpor's agent inside the guest: runs commands and moves files for the host. Standard library only."""

__version__ = "0.1.0"
