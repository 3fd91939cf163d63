"""`python -m torpor.server`: the daemon."""

from torpor.server import main

main()
