"""`python -m torpor.cli`: the command line."""

from torpor.cli import main

main()
