"""The how-to on agent memory is a program: its blocks run in order, Python and commands alike."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.style.markdown import ROOT, blocks
from torpor.cli.app import app

pytestmark = pytest.mark.usefixtures("server")


def test_every_block_runs() -> None:
    names: dict[str, Any] = {}
    shown = ""
    found = blocks(ROOT / "docs/how-to/agent-memory.md")
    assert {block.language for block in found} == {"python", "console"}
    for block in found:
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, block.place, "exec"), names)
            continue
        for line in block.text.splitlines():
            shown += _ran(line.removeprefix("$ torpor "), names)
    for wanted in ("Postgres", "the user corrected me", "bytes left     0", "unverified"):
        assert wanted in shown


def _ran(line: str, names: dict[str, Any]) -> str:
    if " FACT" in f" {line} " and "wrong" not in names:
        (fact,) = names["mem"].facts("billing", "use")
        names["wrong"] = fact.id
    known = {"SANDBOX": names["sbx"].id, "SNAPSHOT": names["before"].id, "FACT": names.get("wrong")}
    words = [known.get(word) or word for word in shlex.split(line)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{line}: {done.output}"
    return done.stdout
