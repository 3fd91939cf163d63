"""The note of what is held is whole, or it is not there."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import cast

import pytest

from torpor_guest.launcher import Launcher
from torpor_guest.quiesce_note import Note
from torpor_guest.quiesce_plan import HookPlan


def test_a_kernel_that_takes_a_piece_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    note = Note(tmp_path / "quiesce.json", cast("Launcher", None))
    asyncio.run(note.write("token", [HookPlan("db", "command", user="agent")]))
    kept = json.loads((tmp_path / "quiesce.json").read_text())
    assert (kept["token"], [hook["name"] for hook in kept["hooks"]]) == ("token", ["db"])
    assert [path.name for path in tmp_path.iterdir()] == ["quiesce.json"]
