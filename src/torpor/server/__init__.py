"""The daemon's HTTP face: one router a noun, one error handler. Decides nothing about machines."""

from __future__ import annotations

import gc


def main() -> None:
    """Run the daemon; the entry point `torpord`."""
    gc.disable()  # what is loaded stays: looking through it takes an eighth of the start; see `daemon._serve`
    from torpor.server.daemon import main as run

    run()
