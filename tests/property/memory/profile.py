"""How many examples a property gets: few by default, many with TORPOR_TEST_EXAMPLES=10000."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("TORPOR_TEST_EXAMPLES", "60"))


def many(share: float = 1.0) -> settings:
    """Return settings for `share` of the configured number of examples."""
    return settings(
        max_examples=max(10, int(EXAMPLES * share)),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
