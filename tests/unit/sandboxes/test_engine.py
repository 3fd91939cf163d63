"""The engine over a driver without machines: every state, every failure, every order of two requests."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.fakes.driver import NO_FIGURES
from tests.unit.sandboxes.world import Play, World
from torpor.errors import (
    Conflict,
    GuestUnreachable,
    InsufficientResources,
    InvalidRequest,
    NotFound,
    VmmFailed,
    WrongState,
)
from torpor.model import (
    MemoryChoice,
    SandboxFilter,
    SandboxId,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
)
from torpor.sandboxes import admission, console

S = SandboxState


def test_create_get_list_delete(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        made = await world.create(metadata={"a": "b"}, env={"TOKEN": "hush"})
        assert made.state is S.RUNNING
        assert (made.boot_mode, made.env_names, made.driver) == ("restore", ("TOKEN",), "fake")
        assert await world.engine.get(made.id) == made
        assert (await world.engine.list(SandboxFilter(metadata={"a": "b"}))).items == (made,)
        (renewal,) = world.connect.agents[0].renewals
        assert (renewal.reason, renewal.hostname) == ("create", made.id.replace("_", "-"))
        assert len(renewal.entropy) == 64
        assert b"hush" in world.connect.agents[0].files["/etc/torpor/sandbox.json"]
        assert b"hush" not in b"".join(p.read_bytes() for p in world.home.root.glob("torpor.db*"))
        async with world.engine.guest(made.id) as guest:
            assert guest is world.connect.agents[0]
        gone = await world.engine.delete(made.id)
        assert gone.state is S.DELETED
        assert (await world.engine.delete(made.id)).state is S.DELETED
        assert (await world.engine.list(SandboxFilter())).items == ()
        assert not world.folder(made.id).exists()

    play(scene)


def test_what_a_machine_uses_is_its_process_s_and_its_devices(play: Play) -> None:
    async def scene(world: World) -> None:
        made = await world.create()
        world.driver.figures = replace(NO_FIGURES, disk_reads=7, network_sent_bytes=9)
        used = await world.engine.usage(made.id)
        assert (used.disk_reads, used.network_sent_bytes, used.network_throttled) == (7, 9, None)
        assert abs(datetime.now(UTC) - used.since) < timedelta(seconds=60)
        assert used.memory_bytes > 0
        assert used.cpu_seconds >= 0
        await world.engine.pause(made.id)
        assert (await world.engine.usage(made.id)).disk_reads == 7
        await world.engine.hibernate(made.id)
        with pytest.raises(WrongState, match="is hibernated; it has no machine") as caught:
            await world.engine.usage(made.id)
        assert caught.value.hint == f"it counts from its wake on: torpor wake {made.id}"
        assert (await world.engine.get(made.id)).state is S.HIBERNATED, "looking wakes nothing"

    play(scene)


def test_what_is_not_there_and_what_cannot_be(play: Play) -> None:
    async def scene(world: World) -> None:
        unknown = SandboxId("sbx_" + "0" * 20)
        for call in (
            world.engine.get,
            world.engine.delete,
            world.engine.pause,
            world.engine.resume,
        ):
            with pytest.raises(NotFound):
                await call(unknown)
            with pytest.raises(InvalidRequest):
                await call(SandboxId("../x"))
        with pytest.raises(NotFound, match="no template nope"):
            await world.engine.create(SandboxSpec(template="nope"))
        bad: list[dict[str, Any]] = [
            {"network": "bridge"},
            {"idle_seconds": 0},
            {"ttl_seconds": 0},
            {"ttl_seconds": -5},
            {"on_timeout": "explode"},
            {"env": {"A=B": "x"}},
            {"env": {"A": "x\0y"}},
            {"env": {"A": "\ud800"}},
            {"metadata": {"\ud800": "x"}},
            {"metadata": {"": "x"}},
            {"metadata": {str(n): "x" for n in range(100)}},
            {"ram_mib": 1},
        ]
        for values in bad:
            with pytest.raises(InvalidRequest):
                await world.create(**values)
        for limit in (0, 1001):
            with pytest.raises(InvalidRequest):
                await world.engine.list(SandboxFilter(limit=limit))
        assert list(world.home.sandboxes.iterdir()) == []
        assert (await world.engine.list(SandboxFilter())).items == ()

    play(scene)


def test_no_memory_is_refused_before_anything_exists(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        monkeypatch.setattr(admission, "_memory_mib", lambda _: (2048, 2000))
        results = await asyncio.gather(
            *(world.create(ram_mib=600) for _ in range(4)), return_exceptions=True
        )
        made = [r for r in results if isinstance(r, SandboxInfo)]
        refused = [r for r in results if isinstance(r, InsufficientResources)]
        assert (len(made), len(refused)) == (2, 2)  # also when all four come at once
        assert len(list(world.home.sandboxes.iterdir())) == 2

    play(scene)


@pytest.mark.parametrize("step", ["overlay", "restore"])
def test_a_create_that_fails_says_why_and_leaves_no_process(play: Play, step: str) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        world.driver.fail[step] = VmmFailed("no such luck")
        with pytest.raises(VmmFailed, match="no such luck"):
            await world.create()
        (info,) = (await world.engine.list(SandboxFilter())).items
        assert info.state is S.FAILED
        assert "no such luck" in str(info.error)
        with pytest.raises(WrongState, match="is failed; running is wanted"):
            async with world.engine.guest(info.id):
                pass

    play(scene)


def test_an_agent_that_never_answers_fails_the_create_and_ends_the_machine(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        world.connect.fail = GuestUnreachable("the agent did not answer within 300 s")
        with pytest.raises(GuestUnreachable):
            await world.create()
        (info,) = (await world.engine.list(SandboxFilter())).items
        assert info.state is S.FAILED
        assert "did not answer" in str(info.error)
        assert "login:" in str(info.error), "the console's end belongs into the reason"
        assert world.driver._found(world.folder(info.id)) is None

    play(scene)


def test_a_machine_that_dies_while_booting_ends_the_create_at_once(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        world.connect.block = asyncio.Event()
        creating = asyncio.create_task(world.create())
        await asyncio.wait_for(world.connect.reached.wait(), 10)
        (info,) = (await world.engine.list(SandboxFilter())).items
        os.kill(world.vmm(info.id).process.pid, signal.SIGKILL)
        with pytest.raises(VmmFailed, match=r"the machine of sandbox .* ended"):
            await asyncio.wait_for(creating, 10)
        assert (await world.engine.get(info.id)).state is S.FAILED

    play(scene)


def test_delete_breaks_a_create_off(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        world.connect.block = asyncio.Event()
        creating = asyncio.create_task(world.create())
        await asyncio.wait_for(world.connect.reached.wait(), 10)
        (info,) = (await world.engine.list(SandboxFilter())).items
        process = world.vmm(info.id).process
        both = await asyncio.gather(world.engine.delete(info.id), world.engine.delete(info.id))
        assert {b.state for b in both} == {S.DELETED}
        with pytest.raises(WrongState, match="deleted during its create"):
            await creating
        assert not process.alive()

    play(scene)


def test_a_caller_that_goes_away_undoes_nothing(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        world.connect.block = asyncio.Event()
        creating = asyncio.create_task(world.create())
        await asyncio.wait_for(world.connect.reached.wait(), 10)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        world.connect.block.set()
        (info,) = (await world.engine.list(SandboxFilter())).items
        await world.until(info.id, S.RUNNING)

    play(scene)


def test_pause_and_resume(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        assert (await world.engine.resume(info.id)).state is S.RUNNING
        for _ in range(2):
            assert (await world.engine.pause(info.id)).state is S.PAUSED
        assert await world.vmm(info.id).status() == "paused"
        with pytest.raises(WrongState, match="is paused; running is wanted") as caught:
            async with world.engine.guest(info.id):
                pass
        assert "torpor resume" in str(caught.value.hint)
        assert (await world.engine.resume(info.id)).state is S.RUNNING
        assert await world.vmm(info.id).status() == "running"
        assert world.connect.agents[-1].calls == ["set_clock"], "its clock stood still"

    play(scene)


@pytest.mark.parametrize("step", ["pause", "resume"])
def test_a_pause_or_resume_that_fails_leaves_what_is_so(play: Play, step: str) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        if step == "resume":
            await world.engine.pause(info.id)
        world.driver.fail[step] = VmmFailed("not now")
        with pytest.raises(VmmFailed, match="not now"):
            await getattr(world.engine, step)(info.id)
        assert (await world.engine.get(info.id)).state is (
            S.RUNNING if step == "pause" else S.PAUSED
        )

    play(scene)


@pytest.mark.parametrize("step", ["pause", "resume"])
def test_after_a_step_that_is_not_answered_it_is_as_before(play: Play, step: str) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        before = S.RUNNING
        if step == "resume":
            before = (await world.engine.pause(info.id)).state
        world.driver.fail = {step: VmmFailed("no answer"), "status": VmmFailed("none either")}
        with pytest.raises(VmmFailed, match="no answer"):
            await getattr(world.engine, step)(info.id)
        assert (await world.engine.get(info.id)).state is before
        world.driver.fail = {}
        await getattr(world.engine, step)(info.id)

    play(scene)


def test_requests_to_one_sandbox_take_turns(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        turns = [world.engine.pause, world.engine.resume] * 10
        results = await asyncio.gather(*(turn(info.id) for turn in turns))
        assert [r.state for r in results] == [S.PAUSED, S.RUNNING] * 10

    play(scene)


def test_a_machine_that_dies_is_failed_with_its_last_words(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        (world.folder(info.id) / "vmm.log").write_text("kvm: internal error\n")
        world.driver.reached.clear()
        os.kill(world.vmm(info.id).process.pid, signal.SIGKILL)
        failed = await world.until(info.id, S.FAILED)
        assert "sweep" in world.driver.reached, "what it had beside its process goes too"
        assert "kvm: internal error" in str(failed.error)
        assert "login:" in str(failed.error)
        assert not (world.folder(info.id) / "vm" / "ram").exists(), "its memory is given back"
        with pytest.raises(WrongState):
            await world.engine.pause(info.id)

    play(scene)


@pytest.mark.parametrize(
    ("words", "error"),
    [("reboot: Power down", None), ("reboot: Restarting system", "memory=cold")],
)
def test_a_machine_that_ends_itself_is_stopped(play: Play, words: str, error: str | None) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        console = world.driver.console(world.folder(info.id))
        console.write_text(f"[   12.3] {words}\n")
        os.kill(world.vmm(info.id).process.pid, signal.SIGKILL)
        stopped = await world.until(info.id, S.STOPPED)
        assert stopped.error is None if error is None else error in str(stopped.error)

    play(scene)


@pytest.mark.parametrize("memory", ["ram", "cold"])
def test_how_a_machine_ends_is_not_read_from_what_the_one_before_it_said(
    play: Play, memory: MemoryChoice
) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        snapshot = await world.engine.snapshot(info.id)
        with world.driver.console(world.folder(info.id)).open("a") as said:
            said.write("[   12.3] reboot: Power down\n")
        os.kill(world.vmm(info.id).process.pid, signal.SIGKILL)
        await world.until(info.id, S.STOPPED)
        await world.engine.rollback(info.id, snapshot.id, memory=memory)
        os.kill(world.vmm(info.id).process.pid, signal.SIGKILL)
        failed = await world.until(info.id, S.FAILED)
        assert "ended unexpectedly" in str(failed.error)
        assert "Power down" not in str(failed.error)
        log = b"".join([data async for data in world.engine.console(info.id)]).decode()
        assert log.count("login:") == 2, "and what that one said is still there to be read"

    play(scene)


def test_a_lease_runs_out_only_while_running(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(ttl_seconds=100)
        assert info.expires_at == world.clock.time + timedelta(seconds=100)
        world.clock.time += timedelta(seconds=40)
        paused = await world.engine.pause(info.id)
        assert paused.expires_at is None
        world.clock.time += timedelta(days=3)
        resumed = await world.engine.resume(info.id)
        assert resumed.expires_at == world.clock.time + timedelta(seconds=60)
        async with world.engine.guest(info.id):
            assert (await world.engine.get(info.id)).expires_at == resumed.expires_at, (
                "use changes no lease"
            )
        world.clock.time += timedelta(seconds=61)
        await world.engine.set_ttl(info.id, 1)  # wakes the task, which counts anew from now
        world.clock.time += timedelta(seconds=2)
        await world.until(info.id, S.DELETED)

    play(scene)


def test_set_ttl_can_lift_the_end(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create(ttl_seconds=100)
        assert (await world.engine.set_ttl(info.id, None)).expires_at is None
        assert (await world.engine.set_ttl(info.id, 7)).expires_at == world.clock.time + timedelta(
            seconds=7
        )
        with pytest.raises(InvalidRequest):
            await world.engine.set_ttl(info.id, 0)
        with pytest.raises(InvalidRequest):
            await world.engine.set_ttl(info.id, 5, on_timeout="explode")  # type: ignore[arg-type]

    play(scene)


def test_the_next_daemon_adopts_running_and_paused_machines(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.warm()
        running, paused = await world.create(ttl_seconds=50), await world.create()
        await world.engine.pause(paused.id)
        pids = {i.id: world.vmm(i.id).process for i in (running, paused)}
        await world.restart()
        assert await world.engine.get(running.id) == running
        assert (await world.engine.get(paused.id)).state is S.PAUSED
        assert {i: world.vmm(i).process for i in pids} == pids
        assert (await world.engine.resume(paused.id)).state is S.RUNNING
        async with world.engine.guest(running.id):
            pass
        assert world.connect.epochs == [2, 2, 3, 3], (
            "higher than any before, the template's own included"
        )
        os.kill(pids[running.id].pid, signal.SIGKILL)
        await world.until(running.id, S.FAILED)

    play(scene)


def test_a_machine_that_died_without_a_daemon_is_found_dead(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        process = world.vmm(info.id).process
        await world.engine.aclose()
        await process.kill()
        world.engine = world.new_engine()
        await world.engine.start()
        assert (await world.engine.get(info.id)).state is S.FAILED

    play(scene)


def test_folders_without_a_row_go_and_one_bad_sandbox_stops_no_other(play: Play) -> None:
    async def scene(world: World) -> None:
        good, bad = await world.create(), await world.create()
        stranger = world.home.sandboxes / ("sbx_" + "z" * 20)
        stranger.mkdir()
        await world.engine.aclose()
        process = world.driver._found(world.folder(bad.id))
        assert process is not None
        await process.kill()
        (world.folder(bad.id) / "vmm.json").write_text('{"pid": 1, "started_ticks": 0}')
        world.engine = world.new_engine()
        await world.engine.start()
        assert not stranger.exists()
        assert (await world.engine.get(good.id)).state is S.RUNNING
        assert (await world.engine.get(bad.id)).state is S.FAILED

    play(scene)


def test_a_lost_channel_is_connected_anew(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        world.connect.agents[0].closed = True
        guests = await asyncio.gather(*(_entered(world, info.id) for _ in range(5)))
        assert set(guests) == {world.connect.agents[1]}, "five at once connect once"

    async def _entered(world: World, sandbox_id: SandboxId) -> Any:
        async with world.engine.guest(sandbox_id) as guest:
            return guest

    play(scene)


def test_a_template_in_use_is_not_deleted(play: Play) -> None:
    async def scene(world: World) -> None:
        info = await world.create()
        with pytest.raises(Conflict, match="needed by sbx_"):
            await world.engine.delete_template("base")
        await world.engine.delete(info.id)
        await world.engine.delete_template("base")
        assert world.templates.deleted == ["base"]

    play(scene)


def test_console_is_read_to_its_end_and_followed(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_POLL_S", 0.01)

    async def scene(world: World) -> None:
        info = await world.create()
        assert (
            b"".join([c async for c in world.engine.console(info.id)])
            == b"Linux version 6.12\nlogin:\n"
        )
        seen = b""
        async for chunk in world.engine.console(info.id, follow=True):
            seen += chunk
            if seen.endswith(b"login:\n"):
                with world.driver.console(world.folder(info.id)).open("ab") as log:
                    log.write(b"more\n")
            if seen.endswith(b"more\n"):
                await world.engine.delete(info.id)
        assert seen.endswith(b"login:\nmore\n")

    play(scene)
