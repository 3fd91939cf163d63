"""The tutorial is a program: its blocks run in order, in one folder."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from torpor.memory.rows import EXPORTED, TABLES

DOCS = Path(__file__).parents[3] / "docs"


def test_every_block_of_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "memory.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    has_models = importlib.util.find_spec("pydantic_ai") is not None
    for block in blocks:
        needs_models = "import TestModel" in block or "PydanticAIExtractor" in block
        if needs_models and not has_models:  # the extra torpor[memory-ai]
            continue
        line = text[: text.index(block)].count("\n")
        code = compile("\n" * line + block, "docs/memory.md", "exec")
        exec(code, names)


def test_the_format_page_names_every_table() -> None:
    text = (DOCS / "formats" / "memory-export.md").read_text()
    assert all(TABLES[table] in text for table in EXPORTED)
