"""Cold boot, the exec round trip, and files up and down."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from torpor.base.units import MIB
from torpor.bench.figures import Figure, Goal, Series
from torpor.bench.floor import BarePort
from torpor.bench.rig import Rig, root
from torpor.sdk.loop import loop_thread
from torpor.sdk.sync_sandbox import Sandbox

_OTHER_RAM_MIB = 64
"""More than the template's own: there is no snapshot of that size, so the create is a cold boot."""
_BOOT_LIMIT_S = 300.0
_BATCH = 10
_SPAWN = """
import os, sys, time
for n in range(1 + int(sys.argv[1])):
    begun = time.perf_counter()
    os.waitpid(os.posix_spawn("/bin/sh", ["/bin/sh", "-c", "true"], {}), 0)
    if n:
        print((time.perf_counter() - begun) * 1000)
"""
"""Run in the guest; the first is left out, since it is the emulator translating."""


def cold_boot(rig: Rig) -> Iterator[Figure]:
    """A create that has no snapshot to begin from, until `create` returns; by hand until the agent answers."""
    ram_mib = rig.template.ram_mib + _OTHER_RAM_MIB
    ours, bare = [], []
    for _ in range(rig.times(3, 1)):
        begun = time.perf_counter()
        with rig.sandbox(ram_mib=ram_mib) as sandbox:
            ours.append((time.perf_counter() - begun) * 1000)
            assert sandbox.info.boot_mode == "cold", "there is a snapshot of that size"
        begun = time.perf_counter()
        with rig.floor.booted(rig.template, ram_mib=ram_mib) as machine:
            agent = machine.agent(timeout_s=_BOOT_LIMIT_S)
            bare.append((time.perf_counter() - begun) * 1000)
            loop_thread.run(agent.aclose())
    yield Figure(
        name="boot.cold",
        what="cold boot to the agent",
        unit="ms",
        ours=Series.of(ours),
        beside=Series.of(bare),
        beside_what=f"{rig.floor.vmm} boots the same disk",
    )


def exec_round_trip(rig: Rig) -> Iterator[Figure]:
    """`true` through SDK, daemon, channel and agent, beside one line echoed on the bare port, in turns."""
    ours: list[float] = []
    bare: list[float] = []
    inside: list[float] = []
    with rig.sandbox() as sandbox, bare_port(rig) as port:
        for round_ in range(1 + rig.times(30, 3)):
            found = [took(lambda: sandbox.exec("true")) for _ in range(_BATCH)]
            echoes = [took(port.echo) for _ in range(_BATCH)]
            if round_:  # the first is the emulator translating, and connections being made
                ours += found
                bare += echoes
                inside += _spawned_inside(sandbox, rig.times(3, 3))
    yield Figure(
        name="exec.true",
        what="exec `true`, round trip",
        unit="ms",
        ours=Series.of(ours),
        beside=Series.of(bare),
        beside_what="a line echoed on the bare port",
        goal=Goal("more by at most", 3),
    )
    yield Figure(
        name="exec.true.inside",
        what="exec `true`, round trip",
        unit="ms",
        ours=Series.of(ours),
        beside=Series.of(inside),
        beside_what="a program in the guest starts `sh -c true` and waits for it",
    )


def _spawned_inside(sandbox: Sandbox, times: int) -> list[float]:
    """Return how long the guest itself takes to start the same command and see it end: no less can be had."""
    said = root(sandbox, f"python3 -S -c '{_SPAWN}' {times}")
    return [float(word) for word in said.split()]


def files(rig: Rig) -> Iterator[Figure]:
    """One file up and down, to and from tmpfs, beside the same bytes on the bare port."""
    size = rig.times(32, 4) * MIB
    values: dict[str, list[float]] = {"up": [], "down": [], "sink": [], "source": []}
    local = rig.folder / "upload"
    local.write_bytes(bytes(range(256)) * (size // 256))
    with rig.sandbox() as sandbox, bare_port(rig) as port:
        steps: dict[str, Callable[[], object]] = {
            "up": lambda: sandbox.filesystem.upload(local, "/dev/shm/file"),  # noqa: S108 - the guest's
            "sink": lambda: port.sink(size),
            "down": lambda: sandbox.filesystem.download("/dev/shm/file", rig.folder / "download"),  # noqa: S108
            "source": lambda: port.source(size),
        }
        for _ in range(rig.times(3, 1)):
            for name, step in steps.items():
                values[name].append(size / MIB / (took(step) / 1000))
            (rig.folder / "download").unlink()
    local.unlink()
    for way, ours, bare in (("up", "up", "sink"), ("down", "down", "source")):
        yield Figure(
            name=f"files.{way}",
            what=f"file {way}, {size // MIB} MiB",
            unit="MiB/s",
            ours=Series.of(values[ours]),
            beside=Series.of(values[bare]),
            beside_what="the same bytes on the bare port",
            goal=Goal("ratio at least", 0.5),
        )


@contextlib.contextmanager
def bare_port(rig: Rig) -> Iterator[BarePort]:
    """Enter with the port of a machine that was restored by hand and runs the bare echo."""
    with rig.sandbox() as source:
        snapshot = source.snapshot()
        rig.drop(rig.restore(snapshot))  # makes the RAM image
        with rig.floor.restored(snapshot.id) as machine:
            port = machine.bare_port()
            try:
                yield port
            finally:
                port.close()


def took(act: Callable[[], object]) -> float:
    """Return how many milliseconds `act` took."""
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1000
