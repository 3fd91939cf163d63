"""The daemon's HTTP face: one router a noun, one error handler. Decides nothing about machines."""

from __future__ import annotations


def main() -> None:
    """Run the daemon; the entry point `torpord`."""
    from torpor.server.daemon import main as run

    run()
