"""`TemplateStore` over a fake bootstrapper and a fake machine."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fakes.records import T0, FakeClock
from tests.fakes.templates import FakeBooter, FakeBootstrap, FakeGuest, write_agent
from tests.unit.templates.test_dockerfile import BuildGuest
from torpor.base.home import Home
from torpor.base.sparse import sparse_sha256
from torpor.errors import (
    BuildFailed,
    Conflict,
    DataDamaged,
    GuestUnreachable,
    HostNotReady,
    InsufficientResources,
    InvalidRequest,
    NotFound,
)
from torpor.model import BuildEvent
from torpor.templates import build as builds
from torpor.templates import manifest, plan, worklock
from torpor.templates.dockerfile import inherit
from torpor.templates.oci import registry
from torpor.templates.store import TemplateStore

pytestmark = pytest.mark.anyio

RECIPE = 'name = "own"\ndescription = "a test"\nvcpus = 2\nenv = {A = "1"}\n'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    agent = write_agent(tmp_path / "agent")
    monkeypatch.setattr(plan, "agent_sources", lambda: agent)
    (tmp_path / "own.toml").write_text(RECIPE)
    found = Home(tmp_path / "home")
    found.prepare()
    return found


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own.toml"


def make_store(
    home: Home, bootstrap: FakeBootstrap | None = None, boot: FakeBooter | None = None
) -> TemplateStore:
    return TemplateStore(home, boot or FakeBooter(), bootstrap=bootstrap or FakeBootstrap())


async def events_of(events: AsyncIterator[BuildEvent]) -> list[BuildEvent]:
    return [event async for event in events]


def left_in(home: Home) -> list[str]:
    return sorted(path.name for path in home.tmp.iterdir())


async def test_build_publishes_and_points(home: Home, own: Path) -> None:
    boot = FakeBooter(FakeGuest(output=b"sad.service\n"))
    store = make_store(home, boot=boot)
    seen = await events_of(store.build(own))
    fractions = [event.fraction for event in seen]
    assert fractions == sorted(fractions)
    assert (seen[-1].step, seen[-1].fraction) == ("done", 1.0)
    assert all(event.template is None for event in seen[:-1])
    assert any("sad.service" in event.message for event in seen)
    assert boot.guest.calls == [
        "settle",
        "exec as root",
        "exec_forget",
        "settle",
        "shutdown",
    ]
    info = seen[-1].template
    assert info is not None
    assert (info.name, info.vcpus, info.env) == ("own", 2, {"A": "1"})
    assert store.list() == (info,)
    template = store.get("own")
    assert template.info == info
    assert template.disk == home.templates / info.digest / "disk.raw"
    assert "root=/dev/vda" in template.cmdline
    for path in (template.disk, template.kernel, template.initrd):
        assert path.stat().st_mode & 0o227 == 0
    assert left_in(home) == []
    written = json.loads((home.templates / info.digest / "manifest.json").read_text())
    assert written["format"] == 1
    assert len(written["files"]["disk.raw"]["sparse_sha256"]) == 64


async def test_the_age_of_a_template_counts_from_when_it_is_there(home: Home, own: Path) -> None:
    clock = FakeClock()

    class SlowGuest(FakeGuest):
        async def shutdown(self) -> None:
            clock.time += timedelta(minutes=5)

    store = TemplateStore(home, FakeBooter(SlowGuest()), bootstrap=FakeBootstrap(), clock=clock)
    info = (await events_of(store.build(own)))[-1].template
    assert info is not None
    assert info.created_at == clock.now() > T0
    assert store.get("own").info.created_at == info.created_at


async def test_an_agent_that_ends_with_its_machine_need_not_answer(home: Home, own: Path) -> None:
    class CutGuest(FakeGuest):
        async def shutdown(self) -> None:
            raise GuestUnreachable("the guest channel was cut")

    store = TemplateStore(home, FakeBooter(CutGuest()), bootstrap=FakeBootstrap())
    info = (await events_of(store.build(own)))[-1].template
    assert info is not None
    assert store.get("own").info == info


async def test_second_build_is_returned_at_once(home: Home, own: Path) -> None:
    bootstrap = FakeBootstrap()
    store = make_store(home, bootstrap)
    first = (await events_of(store.build(own)))[-1].template
    again = await events_of(make_store(home, bootstrap).build(own))
    assert bootstrap.runs == 1
    assert again[-1].template == first
    assert "up to date" in again[-1].message


async def test_force_makes_a_new_image_beside_the_old(home: Home, own: Path) -> None:
    bootstrap = FakeBootstrap()
    store = make_store(home, bootstrap)
    first = (await events_of(store.build(own)))[-1].template
    second = (await events_of(store.build(own, force=True)))[-1].template
    assert first is not None
    assert second is not None
    assert bootstrap.runs == 2
    assert first.digest != second.digest
    assert store.get("own").info == second
    assert store.by_digest(first.digest).info == first  # sandboxes may be made of it
    await events_of(store.build(own))
    assert bootstrap.runs == 2  # the forced image is of the same recipe
    assert store.collect({first.digest}) == ()
    assert store.collect(set()) == (first.digest,)
    assert store.get("own").info == second


async def test_lost_pointer_is_made_again_without_a_build(home: Home, own: Path) -> None:
    bootstrap = FakeBootstrap()
    store = make_store(home, bootstrap)
    first = (await events_of(store.build(own)))[-1].template
    (home.templates / "own.json").unlink()
    assert (await events_of(store.build(own)))[-1].template == first
    assert bootstrap.runs == 1
    assert store.get("own").info == first


async def test_second_caller_follows_from_the_first_event(home: Home, own: Path) -> None:
    gate = asyncio.Event()
    bootstrap = FakeBootstrap(gate)
    store = make_store(home, bootstrap)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(events_of(store.build(own)))
        await bootstrap.begun.wait()
        second = group.create_task(events_of(store.build(own)))
        await asyncio.sleep(0)
        gate.set()
    assert bootstrap.runs == 1
    assert first.result() == second.result()


async def test_build_goes_on_when_its_caller_goes_away(home: Home, own: Path) -> None:
    gate = asyncio.Event()
    bootstrap = FakeBootstrap(gate)
    store = make_store(home, bootstrap)
    caller = asyncio.ensure_future(events_of(store.build(own)))
    await bootstrap.begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()
    assert (await events_of(store.build(own)))[-1].step == "done"
    assert bootstrap.runs == 1


async def test_two_stores_of_one_home_build_once(home: Home, own: Path) -> None:
    gate = asyncio.Event()
    bootstrap = FakeBootstrap(gate)
    one, two = make_store(home, bootstrap), make_store(home, bootstrap)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(events_of(one.build(own)))
        await bootstrap.begun.wait()
        second = group.create_task(events_of(two.build(own)))
        await _until(lambda: second.done() or len(_waiting(two)) > 0)
        gate.set()
    assert bootstrap.runs == 1
    assert any("waiting" in event.message for event in second.result())
    assert second.result()[-1].template == first.result()[-1].template


def _waiting(store: TemplateStore) -> list[str]:
    return [
        event.message
        for log in store._builds.values()
        for event in log._events
        if "waiting" in event.message
    ]


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BuildFailed("step packages failed", step="packages"), BuildFailed),
        (OSError(errno.ENOSPC, "No space left on device"), InsufficientResources),
        (InvalidRequest("no such package"), InvalidRequest),
    ],
)
async def test_failed_build_leaves_nothing(
    home: Home, own: Path, error: Exception, kind: type[Exception]
) -> None:
    store = make_store(home, FakeBootstrap(error=error))
    with pytest.raises(kind):
        await events_of(store.build(own))
    assert left_in(home) == []
    assert store.list() == ()
    assert [path.name for path in home.templates.iterdir()] == [".lock"]


async def test_failed_boot_is_a_failed_build(home: Home, own: Path) -> None:
    store = make_store(home, boot=FakeBooter(fail=True))
    with pytest.raises(BuildFailed, match="did not boot and settle: the agent did not") as caught:
        await events_of(store.build(own))
    assert caught.value.facts["step"] == "boot"
    assert left_in(home) == []


async def test_failed_script_in_the_guest_is_a_failed_build(home: Home, own: Path) -> None:
    store = make_store(home, boot=FakeBooter(FakeGuest(exit_code=3)))
    with pytest.raises(BuildFailed, match="status 3"):
        await events_of(store.build(own))
    assert left_in(home) == []


async def test_stopped_build_is_undone_and_said(home: Home, own: Path) -> None:
    bootstrap = FakeBootstrap(asyncio.Event())
    store = make_store(home, bootstrap)
    caller = asyncio.ensure_future(events_of(store.build(own)))
    await bootstrap.begun.wait()
    await store.aclose()
    with pytest.raises(BuildFailed, match="was stopped"):
        await caller
    assert bootstrap.cancelled
    assert left_in(home) == []


async def test_too_little_disk_is_refused_with_the_numbers(
    home: Home, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = FakeBootstrap()
    store = make_store(home, bootstrap)
    monkeypatch.setattr(builds, "free_bytes", lambda folder: 1 << 30)
    with pytest.raises(InsufficientResources, match=r"has 1\.0 GiB free; a build needs 3\.0 GiB"):
        await events_of(store.build(own))
    assert bootstrap.runs == 0
    assert left_in(home) == []


async def test_unknown_and_malformed_recipes(home: Home, tmp_path: Path) -> None:
    store = make_store(home)
    with pytest.raises(NotFound, match="no recipe is called 'nope'"):
        await events_of(store.build("nope"))
    (tmp_path / "bad.toml").write_text("name = 1")
    with pytest.raises(InvalidRequest):
        await events_of(store.build(tmp_path / "bad.toml"))


async def test_get_and_delete(home: Home, own: Path) -> None:
    store = make_store(home)
    with pytest.raises(NotFound) as caught:
        store.get("own")
    assert str(caught.value.hint).startswith(
        "built are: none; to be had with torpor template build: "
    )
    info = (await events_of(store.build(own)))[-1].template
    assert info is not None
    users = [f"sbx_{n}" for n in range(7)]
    with pytest.raises(Conflict, match=r"needed by sbx_0, .*sbx_4 and 2 more") as refused:
        store.delete("own", needed={info.digest: users})
    assert refused.value.facts["needed_by"] == users
    assert store.get("own").info == info
    store.delete("own")
    with pytest.raises(NotFound):
        store.get("own")
    assert not (home.templates / info.digest).exists()
    with pytest.raises(NotFound):
        store.delete("own")
    with pytest.raises(InvalidRequest):
        store.get("../own")


async def test_files_shared_by_two_names_stay(home: Home, own: Path) -> None:
    store = make_store(home)
    info = (await events_of(store.build(own)))[-1].template
    assert info is not None
    (home.templates / "other.json").write_text((home.templates / "own.json").read_text())
    store.delete("own")
    assert store.get("other").info == info


async def test_damage_is_found_and_the_rest_is_listed(
    home: Home, own: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(home)
    info = (await events_of(store.build(own)))[-1].template
    assert info is not None
    other = tmp_path / "other.toml"
    other.write_text('name = "other"')
    await events_of(store.build(other))
    folder = home.templates / info.digest
    (folder / "initrd").unlink()
    with pytest.raises(DataDamaged, match="initrd is missing"):
        store.get("own")
    with caplog.at_level(logging.WARNING):
        assert [found.name for found in store.list()] == ["other"]
    assert "own is left out" in caplog.text
    (folder / "manifest.json").chmod(0o600)
    (folder / "manifest.json").write_text('{"format": 9}')
    with pytest.raises(DataDamaged, match="format 9"):
        store.get("own")
    rebuilt = (await events_of(store.build(own)))[-1].template
    assert rebuilt is not None
    assert store.get("own").info == rebuilt


async def test_verify_reads_the_content(home: Home, own: Path) -> None:
    store = make_store(home)
    info = (await events_of(store.build(own)))[-1].template
    assert store.verify("own") == info
    kernel = store.get("own").kernel
    kernel.chmod(0o600)
    kernel.write_bytes(b"KERNEL")
    assert store.get("own").info == info  # sizes are all that is looked at each time
    with pytest.raises(DataDamaged, match="vmlinuz has digest"):
        store.verify("own")


async def test_half_template_is_never_listed_and_is_cleaned(home: Home) -> None:
    half = home.templates / ("0" * 64)
    half.mkdir()
    (half / "disk.raw").write_bytes(b"x")
    (home.templates / ".own.json.abc.tmp").write_bytes(b"x")
    store = make_store(home)
    assert store.list() == ()
    with pytest.raises(NotFound):
        store.by_digest("0" * 64)
    with pytest.raises(NotFound):
        store.by_digest("../x")
    await store.clean()
    assert [path.name for path in home.templates.iterdir()] == [".lock"]


async def test_clean_removes_rubbish_and_spares_a_live_builder(home: Home) -> None:
    boot = FakeBooter()
    for name in ("build-dead", "build-live"):
        (home.tmp / name).mkdir()
        (home.tmp / name / "file").write_bytes(b"x")
        (home.tmp / f"{name}.lock").touch()
    (home.tmp / ".build-gone.doomed").mkdir()
    (home.tmp / "of-another-room").mkdir()
    live = worklock.try_lock(home.tmp / "build-live.lock")
    assert live is not None
    await make_store(home, boot=boot).clean()
    assert left_in(home) == ["build-live", "build-live.lock", "of-another-room"]
    assert boot.swept == [home.tmp / "build-dead" / "vm", home.tmp / "build-gone" / "vm"]
    worklock.unlock(home.tmp / "build-live.lock", live)


def test_sparse_digest_is_of_the_content_not_of_the_holes(tmp_path: Path) -> None:
    full, sparse = tmp_path / "full", tmp_path / "sparse"
    full.write_bytes(b"a" * 5000 + bytes((5 << 20) - 5000) + b"b" + bytes((2 << 20) - 1))
    with sparse.open("wb") as file:
        file.write(b"a" * 5000)
        file.seek(5 << 20)
        file.write(b"b")
        file.truncate(7 << 20)
    assert sparse_sha256(full) == manifest.sparse_sha256(sparse)
    before = sparse_sha256(sparse)
    with sparse.open("r+b") as file:
        file.truncate(8 << 20)
    assert sparse_sha256(sparse) != before
    empty = tmp_path / "empty"
    empty.touch()
    assert len(sparse_sha256(empty)) == 64


def test_a_lock_whose_file_was_removed_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    first = worklock.try_lock(path)
    assert first is not None
    assert worklock.try_lock(path) is None
    path.unlink()
    second = worklock.try_lock(path)
    assert second is not None
    worklock.unlock(path, second)
    worklock.unlock(path, first)
    assert not path.exists()


class StepGuest(FakeGuest, BuildGuest):
    """A guest that is booted once and carries out the steps of a Dockerfile."""

    def __init__(self) -> None:
        FakeGuest.__init__(self)
        BuildGuest.__init__(self)


async def test_a_dockerfile_builds_on_a_template(
    home: Home, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM own\nENV B=$A\nRUN make it\nUSER 7\nCMD go\n")
    made = tmp_path / "made.toml"
    made.write_text('name = "made"\ndockerfile = "Dockerfile"\ndisk_gib = 9\n')
    fake = FakeBootstrap()

    def bootstrap(plan_: plan.BuildPlan, work: Path, out: Path) -> AsyncGenerator[plan.Step, None]:
        return (
            fake(plan_, work, out) if plan_.parent is None else inherit.bootstrap(plan_, work, out)
        )

    guest = StepGuest()
    boot = FakeBooter(guest)
    store = TemplateStore(home, boot, bootstrap=bootstrap)
    with monkeypatch.context() as patch:
        patch.setattr(registry.shutil, "which", lambda _name: None)
        with pytest.raises(HostNotReady, match="skopeo"):  # no template has that name yet
            await events_of(store.build(made))
    await events_of(store.build(own))
    seen = await events_of(store.build(made))
    assert boot.networks == ["none", "user"]
    (info,) = [event.template for event in seen if event.template is not None]
    assert (info.default_user, info.vcpus, info.disk_gib) == ("7", 2, 9)
    assert dict(info.env) == {"A": "1", "B": "1"}
    assert info.command == ("/bin/sh", "-c", "go")
    assert store.get("made").info == info
    assert store.get("made").disk.stat().st_size == 9 << 30
    assert guest.grown == 1
    assert [spec.command for spec in guest.ran] == ["make it", ("true",)]
    again = await events_of(store.build(made))  # what is built is not built again
    assert len(boot.booted) == 2
    assert again[-1].template == info
    assert store.get("own").info.digest != info.digest
    assert left_in(home) == []
