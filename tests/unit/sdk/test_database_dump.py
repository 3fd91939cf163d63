"""A dump is written whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from torpor.errors import InvalidRequest
from torpor.sdk.database_dump import write_dump


async def chunks() -> AsyncGenerator[bytes, None]:
    for chunk in (b"PGDMP", b"rows"):
        yield chunk


def test_it_takes_the_place_of_what_is_there(tmp_path: Path) -> None:
    target = tmp_path / "shop.dump"
    target.write_text("yesterday's")
    assert asyncio.run(write_dump(chunks(), target)) == 9
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"PGDMProws", 0o600)


def test_what_cannot_be_written_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "shop.dump"
    target.write_text("yesterday's")
    monkeypatch.setattr("torpor.base.fsio.os.fsync", full)
    with pytest.raises(InvalidRequest, match="No space left on device"):
        asyncio.run(write_dump(chunks(), target))
    assert [found.name for found in tmp_path.iterdir()] == ["shop.dump"]
    assert target.read_text() == "yesterday's"
    monkeypatch.undo()
    with pytest.raises(InvalidRequest, match="No such file"):
        asyncio.run(write_dump(chunks(), tmp_path / "none" / "shop.dump"))
