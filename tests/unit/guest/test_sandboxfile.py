"""The environment that the host gives a sandbox."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from torpor_guest import errors, sandboxfile
from torpor_guest.errors import AgentError
from torpor_guest.sandboxfile import SandboxFile


def test_it_is_read_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Path] = []
    real = sandboxfile._load

    def load(path: Path) -> Mapping[str, str]:
        loads.append(path)
        return real(path)

    monkeypatch.setattr(sandboxfile, "_load", load)
    path = tmp_path / "sandbox.json"
    file = SandboxFile(path)
    assert file.env() == {}
    path.write_text('{"env": {"A": "1"}}')
    assert file.env() == file.env() == {"A": "1"}
    assert len(loads) == 1
    new = tmp_path / "new"
    new.write_text('{"env": {"A": "2"}}')
    os.utime(new, ns=(path.stat().st_mtime_ns,) * 2)
    new.rename(path)  # same size, same time
    assert file.env() == {"A": "2"}
    path.unlink()
    assert file.env() == {}
    path.write_text("{}")
    assert file.env() == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        '{"env": []}',
        '{"env": {"A": 5}}',
        "[" * 100_000,
        b"\xff".decode("latin1"),
    ],
)
def test_a_damaged_one_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sandbox.json"
    path.write_text(text)
    for _ in range(2):
        with pytest.raises(AgentError, match="cannot be read from") as caught:
            SandboxFile(path).env()
        assert caught.value.code == errors.FAILED
        assert caught.value.hint
