"""A builder that is killed: what it leaves is rubbish, is never used, and is gone after the next start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.templates import FakeBooter, FakeBootstrap, write_agent
from torpor.base.home import Home
from torpor.model import BuildEvent
from torpor.templates import plan
from torpor.templates.store import TemplateStore

pytestmark = [pytest.mark.crash, pytest.mark.anyio]

BUILDER = Path(__file__).with_name("template_builder.py")
REPO = BUILDER.parents[2]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    agent = write_agent(tmp_path / "agent")
    monkeypatch.setattr(plan, "agent_sources", lambda: agent)
    (tmp_path / "own.toml").write_text('name = "own"')
    found = Home(tmp_path / "home")
    found.prepare()
    return found


@contextlib.asynccontextmanager
async def builder_of(
    home: Home, mode: str, fault: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Enter with a builder in a process of its own; leaving ends it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.crash.template_builder",
        str(home.root),
        mode,
        cwd=REPO,
        env=os.environ | {"TORPOR_FAULT": fault},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def build(home: Home, bootstrap: FakeBootstrap) -> list[BuildEvent]:
    store = TemplateStore(home, FakeBooter(), bootstrap=bootstrap)
    await store.clean()
    events: AsyncIterator[BuildEvent] = store.build(home.root.parent / "own.toml")
    return [event async for event in events]


@pytest.mark.parametrize(
    ("fault", "is_published"),
    [
        ("template.bootstrapped", False),
        ("template.settled", False),
        ("template.published", True),
    ],
)
async def test_killed_at_a_step(home: Home, fault: str, is_published: bool) -> None:
    async with builder_of(home, "quick", fault) as builder:
        assert await builder.wait() == -signal.SIGKILL
    store = TemplateStore(home, FakeBooter())
    assert store.list() == ()
    assert any(home.tmp.iterdir())
    bootstrap = FakeBootstrap()
    events = await build(home, bootstrap)
    assert events[-1].template is not None
    assert bootstrap.runs == (0 if is_published else 1)
    assert list(home.tmp.iterdir()) == []
    assert store.get("own").info == events[-1].template
    folders = [path for path in home.templates.iterdir() if path.is_dir()]
    assert len(folders) == 1


async def test_killed_while_its_children_run(home: Home) -> None:
    async with builder_of(home, "children") as builder:
        assert builder.stdout is not None
        async with asyncio.timeout(20):
            while await builder.stdout.readline() != b"up\n":
                pass
        assert len(find_sleepers(home)) >= 2
    async with asyncio.timeout(10):
        while find_sleepers(home):
            await asyncio.sleep(0.02)
    assert (await build(home, FakeBootstrap()))[-1].step == "done"
    assert list(home.tmp.iterdir()) == []


async def test_two_processes_build_once(home: Home) -> None:
    async with builder_of(home, "slow") as one, builder_of(home, "slow") as two:
        outputs = [(await builder.communicate())[0].decode() for builder in (one, two)]
        assert (one.returncode, two.returncode) == (0, 0)
    assert sorted(output.count("bootstrapping") for output in outputs) == [0, 1]
    assert outputs[0].splitlines()[-1] == outputs[1].splitlines()[-1]  # the same digest
    assert list(home.tmp.iterdir()) == []


def find_sleepers(home: Home) -> list[str]:
    """Return the processes that the builder's bootstrapper started, found by their argument."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"marker={home.root}".encode() in line and state not in "ZX":
            found.append(entry.name)
    return found
