"""What is removed of several things when one cannot be, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NoReturn

import pytest
import typer

from torpor.cli.removal import remove_each
from torpor.errors import Conflict


def _removals(gone: list[str]) -> dict[str, Callable[[], int | None]]:
    def needed() -> NoReturn:
        raise Conflict("b is needed", hint="free it")

    return {"a": lambda: gone.append("a") or 2048, "b": needed, "c": lambda: gone.append("c")}


def test_what_cannot_be_removed_keeps_none_of_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone: list[str] = []
    with pytest.raises(typer.Exit) as ended:
        remove_each(_removals(gone), as_json=False)
    assert gone == ["a", "c"]
    assert ended.value.exit_code == Conflict("").exit_code
    said = capsys.readouterr()
    assert said.out.splitlines() == ["a  2.0 KiB freed", "c"]
    assert said.err.splitlines() == ["error: b is needed", "hint: free it"]


def test_programs_are_told_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        remove_each(_removals([]), as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert said["deleted"] == ["a", "c"]
    assert said["freed_bytes"] == 2048
    assert said["errors"]["b"]["error"] == "b is needed"


def test_when_all_goes_well_there_are_no_errors(capsys: pytest.CaptureFixture[str]) -> None:
    remove_each({"a": lambda: None}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"deleted": ["a"]}
