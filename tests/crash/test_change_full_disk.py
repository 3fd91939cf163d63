"""The host's disk is full in the middle of a change: it is no verdict, and the change goes on when there is room."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.crash.smalldisk import small_disk
from tests.unit.recovery.stage import ScriptedLooker, Stage
from torpor.base.home import Home
from torpor.db.database import Database
from torpor.errors import InsufficientResources
from torpor.model_changes import ChangeState
from torpor.recovery import durable
from torpor.recovery.changes import acts

pytestmark = pytest.mark.crash
S = ChangeState


@pytest.mark.parametrize("state", [S.CHANGING, S.PROBATION])
def test_a_change_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: ChangeState
) -> None:
    monkeypatch.setattr(acts, "Looker", ScriptedLooker)
    monkeypatch.setattr(durable, "_AGAIN_S", 0.3)
    ScriptedLooker.script.clear()

    async def main() -> None:
        with small_disk("tmpfs", 32, tmp_path) as disk:
            home = Home(disk.root / "home")
            home.prepare()
            Database.open(home.database).close()
            stage = Stage(home)
            await stage.recovery.start()
            try:
                box = await stage.sandbox()
                begun = await stage.change(
                    box.id,
                    command=f"mark one; sleep {3 if state is S.CHANGING else 0}",
                    target="two",
                    probation_seconds=600,
                    interval_seconds=1,
                )
                await stage.until(begun, state)
                disk.fill()
                async with asyncio.timeout(30):
                    while stage.recovery._durable._working:
                        await asyncio.sleep(0.05)
                assert (await stage.desk.get(begun.id)).state is state
                if state is S.PROBATION:
                    with pytest.raises(InsufficientResources, match="full"):
                        await stage.desk.confirm(begun.id)
                disk.free()
                known = await stage.until(begun, S.PROBATION)
                assert known.state is S.PROBATION, known.why
                async with asyncio.timeout(30):
                    while not stage.recovery._durable._working:
                        await asyncio.sleep(0.05)
                assert (await stage.desk.confirm(begun.id)).state is S.KEPT
                assert stage.engine.sandboxes[box.id].guest.marks["one"] == 1
            finally:
                disk.free()
                await stage.recovery.aclose()
                await stage.engine.aclose()

    asyncio.run(main())
