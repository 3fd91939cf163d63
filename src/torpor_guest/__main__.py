"""`python3 -m torpor_guest`."""

from __future__ import annotations

import sys

sys.modules["ssl"] = None  # type: ignore[assignment]  # asyncio does without; saves a third of the start

from torpor_guest.main import main  # noqa: E402

main()
