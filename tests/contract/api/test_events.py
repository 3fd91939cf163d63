"""Every change of state, in order, with no gap that is not told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.contract.api.conftest import Rest
from tests.fakes.records import make_info
from tests.fakes.serving import ServerThread, Tcp, serving_tcp
from tests.unit.sandboxes.world import Play, World, play
from torpor.base.home import Home
from torpor.model import SandboxState
from torpor.model_access import Scope
from torpor.model_events import StateEvent
from torpor.sandboxes.events import EventLog
from torpor.sdk.client import Client
from torpor.sdk.events import Events

__all__ = ["play"]


async def taken(log: EventLog, count: int, after: str | None = None) -> list[StateEvent]:
    found: list[StateEvent] = []
    async with asyncio.timeout(5):
        async for event in log.follow(after):
            found.append(event)
            if len(found) == count:
                break
    return found


def filled(most: int, events: int) -> EventLog:
    log = EventLog(most=most)
    for number in range(events):
        log.record("template", f"t{number}", "built", None)
    return log


def test_the_log_is_bounded_and_says_where_some_are_missing() -> None:
    log = filled(3, 5)
    life = log._life
    found = asyncio.run(taken(log, 4, f"{life}-1"))
    assert [e.kind for e in found] == ["gap", "template", "template", "template"]
    assert [e.object_id for e in found[1:]] == ["t2", "t3", "t4"]
    assert asyncio.run(taken(log, 1, found[1].id))[0].object_id == "t3"
    for foreign in ("0000-1", f"{life}-99", f"{life}-x", "", "nonsense"):
        assert asyncio.run(taken(log, 1, foreign))[0].kind == "gap"


def test_a_slow_reader_finds_a_gap_and_holds_up_nobody() -> None:
    async def main() -> None:
        log = filled(3, 1)
        events = log.follow(f"{log._life}-0")
        assert (await anext(events)).object_id == "t0"
        for number in range(10):
            log.record("template", f"late{number}", "built", None)
        assert (await anext(events)).kind == "gap"
        assert [(await anext(events)).object_id for _ in range(3)] == ["late7", "late8", "late9"]
        await events.aclose()  # type: ignore[attr-defined]
        assert not log._waiting

    asyncio.run(main())


def test_events_come_from_other_threads() -> None:
    async def main() -> None:
        log = EventLog()
        reader = asyncio.get_running_loop().create_task(taken(log, 100))
        await asyncio.sleep(0)

        def work(n: int) -> None:
            for _ in range(25):
                log.record("template", f"t{n}", "built", None)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        found = await reader
        for thread in threads:
            thread.join()
        numbers = [int(e.id.partition("-")[2]) for e in found]
        assert numbers == list(range(1, 101))

    asyncio.run(main())


def test_what_did_not_change_is_no_event() -> None:
    log = EventLog()
    info = make_info()
    log.know([info])
    log.sandbox(info)
    log.sandbox(make_info(id=info.id, state=SandboxState.PAUSED))
    (event,) = log._events
    assert (event.object_id, event.state) == (info.id, "paused")


def test_the_engine_tells_what_happens(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        events = world.engine.events()
        first = asyncio.get_running_loop().create_task(anext(events))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        info = await world.create()
        taken = await world.engine.snapshot(info.id, label="one")
        await world.engine.pause(info.id)
        await world.engine.delete_snapshot(taken.id)
        await world.engine.delete(info.id)
        found = [await first]
        async with asyncio.timeout(5):
            while found[-1].state != "deleted" or found[-1].kind != "sandbox":
                found.append(await anext(events))  # type: ignore[arg-type]
        await events.aclose()  # type: ignore[attr-defined]
        states = [e.state for e in found if e.object_id == info.id]
        assert states == ["creating", "running", "pausing", "paused", "deleting", "deleted"]
        points = [(e.state, e.details["label"]) for e in found if e.object_id == taken.id]
        assert points == [("created", "one"), ("deleted", "one")]
        await world.restart()
        assert not [e for e in world.engine._parts.events._events if e.object_id == info.id]

    play(scene)


def frames(reply: httpx.Response) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Yield name, id and data of each event."""
    name = event_id = ""
    for line in reply.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("id: "):
            event_id = line[4:]
        elif line.startswith("data: "):
            yield name, event_id, json.loads(line[6:])


def test_the_stream_goes_on_behind_the_last_event(rest: Rest, server: ServerThread) -> None:
    with rest.http.stream("GET", "/v1/events") as reply:
        sandbox = rest.create()
        name, event_id, data = next(frames(reply))
        assert (name, data["id"]) == ("sandbox", event_id)
        assert (data["object_id"], data["state"]) == (sandbox, "running")
        assert data["details"]["template"] == "base"  # type: ignore[index]
    rest.ok("POST", f"/v1/sandboxes/{sandbox}/pause", status=204)
    for again in ({"headers": {"last-event-id": event_id}}, {"params": {"after": event_id}}):
        with rest.http.stream("GET", "/v1/events", **again) as reply:  # type: ignore[arg-type]
            assert next(frames(reply))[2]["state"] == "paused"
    query = {"after": event_id, "kind": "snapshot"}
    with rest.http.stream("GET", "/v1/events", params=query) as reply:
        rest.ok("POST", f"/v1/sandboxes/{sandbox}/snapshots", status=201)
        assert next(frames(reply))[0] == "snapshot"
    with rest.http.stream("GET", "/v1/events", params={"after": "of-before"}) as reply:
        assert next(frames(reply))[0] == "gap"


@pytest.fixture(scope="module")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tcp]:
    with serving_tcp(Home(tmp_path_factory.mktemp("events") / "home")) as found:
        yield found


def test_the_sdk_sees_its_workspace_only(tcp: Tcp) -> None:
    ours = Client(url=tcp.url, token=tcp.token("ours", Scope.READ, "ours"))
    follower = Events.follow(after="x", client=ours)
    assert next(follower).kind == "gap"
    log = tcp.server.engine.log
    theirs, mine = make_info(workspace="theirs"), make_info(workspace="ours")
    log.sandbox(theirs)
    log.record("template", "base", "built", None)
    log.sandbox(mine)
    assert [next(follower).object_id for _ in range(2)] == ["base", mine.id]
    follower.close()  # type: ignore[attr-defined]
