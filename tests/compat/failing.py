"""Lets the engine or a guest of a test fail."""

from __future__ import annotations

from typing import Any

import pytest


def fails_with(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, *errors: Any) -> list[int]:
    """Let a method raise these errors, one a call, and then do as it did; return a list that grows by each call."""
    left, real, calls = list(errors), getattr(target, name), []

    async def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if left:
            raise left.pop(0)
        return await real(*args, **kwargs)

    monkeypatch.setattr(target, name, failing)
    return calls
