"""`python -m torpor.memory.bench`: measure memory on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from torpor.errors import TorporError
from torpor.memory.bench.report import run
from torpor.memory.embed.minilm import MiniLM


def main(arguments: list[str] | None = None) -> int:
    """Parse arguments, measure, print JSON."""
    parser = argparse.ArgumentParser(prog="torpor memory bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object (always so)")
    parser.add_argument(
        "--locomo", type=Path, help="folder with locomo10.json and locomo_errors.json"
    )
    parser.add_argument("--longmemeval", type=Path, help="a LongMemEval file")
    parser.add_argument("--beam", type=Path, help="a folder of BEAM chats")
    parser.add_argument(
        "--updates", type=int, default=10_000, help="length of the generated stream"
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--no-embedder", action="store_true", help="text index only")
    given = parser.parse_args(arguments)
    try:
        found = run(
            embedder=None if given.no_embedder else MiniLM(),
            locomo=given.locomo,
            longmemeval=given.longmemeval,
            beam=given.beam,
            updates=given.updates,
            sizes=given.sizes,
        )
    except TorporError as exc:
        sys.stderr.write(f"{exc.message}\n{exc.hint or ''}\n")
        return exc.exit_code
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
