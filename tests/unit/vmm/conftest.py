"""What tests of machines' files share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the readers' user may pass; each pytest that begins closes pytest's own to others."""
    with tempfile.TemporaryDirectory() as name:
        layers = Path(name) / "layers"
        layers.mkdir()
        for path in (layers, layers.parent):
            path.chmod(0o711)
        yield layers
