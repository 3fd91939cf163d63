"""Holding still: control groups and processes that are real files and processes, systemd on paper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fakes.guest_kernel import PaperKernel
from tests.unit.guest.test_renewal import PaperPrograms, World
from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.stillness import Stillness, Wanted

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Machine:
    """A machine's control groups in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.programs = PaperPrograms()
        self.kernel = PaperKernel(root)
        self.stillness = Stillness(self.kernel, cast("Any", self.programs))

    def group(self, name: str) -> Path:
        folder = self.root / "sys/fs/cgroup" / name
        folder.mkdir(parents=True)
        (folder / "cgroup.freeze").write_text("0")
        return folder / "cgroup.freeze"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_services_and_what_starts_users_timers_are_frozen(machine: Machine) -> None:
    cron = machine.group("system.slice/cron.service")
    deep = machine.group("system.slice/system-hermes.slice/hermes-gateway-1.service")
    other = machine.group("system.slice/ssh.service")
    user = "user.slice/user-0.slice/user@0.service"
    manager = machine.group(f"{user}/init.scope")
    app = machine.group(f"{user}/app.slice/agent.service")
    found = await machine.stillness.hold(Wanted(("cron.service", "hermes-gateway*"), ()))
    assert [p.read_text() for p in (cron, deep, manager)] == ["1", "1", "1"]
    assert [p.read_text() for p in (other, app)] == ["0", "0"]
    assert "system.slice/cron.service" in found["groups"]
    assert machine.programs.ran == [], "without systemd there are no timers of its"


async def test_timers_are_stopped_and_a_failure_ends_it(machine: Machine) -> None:
    (machine.root / "run/systemd/system").mkdir(parents=True)
    await machine.stillness.hold(Wanted((), ()))
    assert machine.programs.ran[0][0] == ["systemctl", "stop", "*.timer"]
    machine.programs.results["systemctl"] = (1, "no bus")
    with pytest.raises(AgentError, match="no bus"):
        await machine.stillness.hold(Wanted((), ()))


async def test_processes_are_stopped_but_not_the_agent_itself(machine: Machine) -> None:
    # unlike any other on this host: whatever has it in its command line is stopped for real
    mark = f"torpor-still-{uuid.uuid4().hex}"
    code = f"import time; {mark!r}; print(1, flush=True); time.sleep(60)"
    # below a shell of ours: the agent's own children are let be where there are no control groups to tell them by
    script = f'{sys.executable} -c "$0" >/dev/null & echo $!; wait'
    shell = subprocess.Popen(
        ["/bin/sh", "-c", script, code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert shell.stdout is not None
    with shell.stdout:
        pid = int(shell.stdout.readline())
    try:
        found = await machine.stillness.hold(Wanted((), (mark,)))
        assert len(found["processes"]) == 1
        deadline = time.monotonic() + 10
        while _state(pid) != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert _state(shell.pid) != "T"
    finally:
        os.kill(pid, signal.SIGKILL)
        shell.wait(20)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    "raw", [7, {"units": "x"}, {"units": [7]}, {"units": [""]}, {"processes": ["x"] * 101}]
)
def test_what_cannot_be_held(raw: object) -> None:
    with pytest.raises(AgentError) as caught:
        Wanted.parse(raw)
    assert caught.value.code == errors.INVALID


async def test_a_pattern_that_is_none_holds_nothing(machine: Machine) -> None:
    cron = machine.group("system.slice/cron.service")
    with pytest.raises(AgentError, match="no regular expression"):
        await machine.stillness.hold(Wanted(("cron.service",), ("(",)))
    assert cron.read_text() == "0"


async def test_a_renewal_holds_before_all_else(tmp_path: Path) -> None:
    world = World(tmp_path)
    frozen = Machine(tmp_path).group("system.slice/cron.service")
    answer = await world.renew(still={"units": ["cron.service"], "processes": []})
    assert answer["done"][:2] == ["still", "entropy"]
    await world.freezer.freeze(30)
    assert (await world.renew(still={"units": [], "processes": []}))["was_frozen"] is True
    assert frozen.read_text() == "1"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    world.programs.results["systemctl"] = (1, "no bus")
    world.kernel.calls.clear()
    with pytest.raises(AgentError, match="timers"):
        await world.renew(still={"units": [], "processes": []})
    assert world.calls() == [], "not handed out, and nothing of it was begun"
