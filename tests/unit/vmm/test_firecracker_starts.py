"""What is said when a Firecracker does not start, without one: a process that does nothing stands for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torpor.base.proc import ProcessId
from torpor.errors import VmmFailed
from torpor.vmm import cgroup, confine, kvm, launch
from torpor.vmm.base import Disk, MachineSpec, SavedMachine, Wall
from torpor.vmm.firecracker import FirecrackerDriver, config, disks, host, network
from torpor.vmm.firecracker import driver as room
from torpor.vmm.firecracker.api import Api, Refused

OOM = "the kernel ended it: it wanted more memory"
_FOUND = host.FirecrackerHost(
    Path("/bin/sleep"), "1.12.1", "it is real", None, Wall("jailer", False, "not used", "a test")
)


class _Gate:
    theirs: tuple[int, ...] = ()

    def argv(self, *_: object) -> list[str]:
        return ["sleep", "100"]

    async def until_there(self) -> None:
        pass

    def open(self) -> None:
        pass


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ProcessId]:
    """Let a start make nothing but a process; returns those that were made."""
    made: list[ProcessId] = []
    groups = {"there"}
    start = launch.start_process

    async def nothing(*_: object, **__: object) -> None:
        pass

    async def found() -> host.FirecrackerHost:
        return _FOUND

    async def noted(argv: list[str], **how: Any) -> ProcessId:
        made.append(await start(argv, **how))
        return made[-1]

    @contextlib.contextmanager
    def gate() -> Iterator[_Gate]:
        yield _Gate()

    monkeypatch.setattr(host, "find_firecracker", found)
    monkeypatch.setattr(confine, "choose_user", lambda _: None)
    monkeypatch.setattr(launch, "start_process", noted)
    monkeypatch.setattr(disks, "fill", nothing)
    monkeypatch.setattr(network, "gate", gate)
    monkeypatch.setattr(network, "make", nothing)
    monkeypatch.setattr(network, "remove", nothing)
    monkeypatch.setattr(Api, "until_listening", nothing)
    monkeypatch.setattr(room, "_given_saved", lambda _, saved: saved)
    monkeypatch.setattr(cgroup, "make", lambda *_: None)
    monkeypatch.setattr(cgroup, "remove", lambda _: groups.clear())
    monkeypatch.setattr(cgroup, "killed_for_memory", lambda _: OOM if groups else "")
    return made


def _failure(folder: Path) -> VmmFailed:
    """Return what a restore in `folder` fails with."""
    disk = folder / "disk.raw"
    disk.touch()
    spec = MachineSpec(
        vcpus=1,
        ram_mib=1,
        network="none",
        kernel=folder,
        initrd=folder,
        cmdline="",
        disk=Disk((), disk),
    )
    with pytest.raises(VmmFailed) as caught:
        asyncio.run(FirecrackerDriver().restore(folder, spec, SavedMachine(folder, folder)))
    return caught.value


def _refuses(monkeypatch: pytest.MonkeyPatch, at: str, fault: str) -> None:
    async def call(_: object, method: str, path: str, *__: object, **___: object) -> None:
        if path.startswith(at):
            raise Refused(f"Firecracker (process 1) refused '{method} {path}': {fault}")

    monkeypatch.setattr(Api, "call", call)


@pytest.mark.parametrize(
    ("at", "fault", "is_the_states"),
    [
        ("/snapshot/load", "Load snapshot error: CRC64 validation failed", True),
        ("/snapshot/load", "cannot restore MSRs: Invalid argument (os error 22)", True),
        ("/snapshot/load", "cannot open memory: Permission denied (os error 13)", False),
        ("/snapshot/load", "cannot map memory: Cannot allocate memory (os error 12)", False),
        ("/snapshot/load", "open tap device: Resource busy (os error 16)", False),
        ("/drives", "invalid rate limiter", False),
    ],
)
def test_only_a_state_that_does_not_fit_is_called_so(
    started: list[ProcessId],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    fault: str,
    is_the_states: bool,
) -> None:
    monkeypatch.setattr(config, "limited", lambda *_: [("/drives/disk", {})])
    _refuses(monkeypatch, at, fault)
    failed = _failure(tmp_path)
    assert fault in failed.message
    assert ("another version of Firecracker" in str(failed.hint)) is is_the_states
    assert is_the_states or str(tmp_path / "vmm.log") in str(failed.hint)


def test_that_it_was_ended_for_its_memory_is_told(
    started: list[ProcessId], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuses(monkeypatch, "/snapshot/load", "no")
    assert OOM in str(_failure(tmp_path).facts["log"])
    assert not started[0].alive()


def test_what_the_system_says_is_told_as_a_failed_start(
    started: list[ProcessId], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise BrokenPipeError(32, os.strerror(32))

    monkeypatch.setattr(_Gate, "open", broken)
    failed = _failure(tmp_path)
    assert "Firecracker did not start: [Errno 32] Broken pipe" in failed.message
    assert str(tmp_path / "vmm.log") in str(failed.hint)
    assert not started[0].alive()


def test_how_many_cpus_it_gives_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found() -> host.FirecrackerHost:
        return _FOUND

    monkeypatch.setattr(host, "find_firecracker", found)
    monkeypatch.setattr(kvm, "cpu_identity", lambda: "a CPU")
    support = asyncio.run(FirecrackerDriver().probe())
    assert (support.usable, support.vcpus_most) == (True, 32)
