"""What a run hands on is bounded where it is made, so that the host never has to refuse all of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from torpor.contexts.inside.outlet import JSON_VALUES, Outlet
from torpor.contexts.lines import LINE_VALUES, Lines

pytestmark = pytest.mark.anyio


class Written(bytearray):
    """As a writer."""

    write = bytearray.extend

    def is_closing(self) -> bool:
        return False


async def test_json_with_too_many_values_is_named_and_left_out() -> None:
    written = Written()
    outlet = Outlet(cast(asyncio.StreamWriter, written), output_bytes=0, result_bytes=16 << 20)
    some, many = [[]] * (JSON_VALUES // 4 + 1), [[]] * (JSON_VALUES // 2 + 1)
    for value in (many, some, some, "[" * JSON_VALUES):
        outlet.result({"application/json": value, "text/plain": "here"}, is_main=True)
    said: list[dict[str, Any]] = [item async for item in Lines().feed(bytes(written))]
    assert ["application/json" in item["data"] for item in said] == [False, True, False, True]
    assert [item["omitted"] for item in said[:3]] == [
        {"application/json": len(json.dumps(many))},
        {},
        {"application/json": len(json.dumps(some))},
    ]
    assert all(item["data"]["text/plain"] == "here" for item in said)
    assert JSON_VALUES < LINE_VALUES
