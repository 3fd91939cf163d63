"""The command line: SDK calls, in words for people and JSON for programs."""

from __future__ import annotations


def main() -> None:
    """Run the command line; the entry point `torpor`."""
    from torpor.cli.app import run

    run()
