"""Ids, names, units and the home's folders."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from torpor.base.home import Home
from torpor.base.ids import check_id, check_name, is_id, new_id
from torpor.base.units import format_bytes, format_seconds
from torpor.errors import InvalidRequest


def test_ids_are_unique_and_tell_their_kind() -> None:
    ids = {new_id("sbx") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(is_id(i, "sbx") and not is_id(i, "snap") for i in ids)
    with pytest.raises(InvalidRequest, match="is not a sandbox id"):
        check_id("../../etc", "sbx", "sandbox")


@pytest.mark.parametrize("name", ["base", "a", "py3.13_x-y", "0" * 63])
def test_names_that_are_good(name: str) -> None:
    assert check_name(name, "template") == name


@pytest.mark.parametrize(
    "name", ["", "A", "a/b", "..", "-a", "a" * 64, "a b", "ä", "a\n", "sbx_nhkyqs5p4bhb6e79qkv4"]
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_name(name, "template")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (12 << 30, "12 GiB"), (5 << 40, "5.0 TiB")],
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0124, "12 ms"),
        (3.42, "3.4 s"),
        (302, "5 min 2 s"),
        (7800, "2 h 10 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_home_is_passable_but_not_readable_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_HOME", str(tmp_path / "home"))
    home = Home.default()
    home.prepare()
    home.prepare()
    for folder in (home.root, home.sandboxes, home.templates):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o711
