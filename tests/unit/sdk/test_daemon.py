"""What a daemon that the SDK starts may see of our environment."""

from __future__ import annotations

import pytest

from torpor.sdk.daemon import _passes


@pytest.mark.parametrize(
    "key", ["PATH", "HOME", "TORPOR_HOME", "TORPOR_ACCEL", "PYTHONPATH", "LC_ALL"]
)
def test_passed_on(key: str) -> None:
    assert _passes(key)


@pytest.mark.parametrize("key", ["TORPOR_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "X"])
def test_withheld(key: str) -> None:
    assert not _passes(key)
