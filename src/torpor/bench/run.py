"""The measurements by name, and one run over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from torpor.base.home import Home
from torpor.bench import channel, comebacks, crowd, databases, host, memory, pauses, volumes
from torpor.bench.figures import Figure, Missed, PausePoint
from torpor.bench.host import HostFacts
from torpor.bench.rig import Rig
from torpor.errors import HostNotReady, InvalidRequest, TorporError
from torpor.model import TemplateInfo
from torpor.sdk.loop import loop_thread
from torpor.vmm.choose import choose_driver

GROUPS: dict[str, str] = {
    "boot": "cold boot",
    "exec": "exec round trip",
    "files": "file throughput up and down",
    "comebacks": "create, restore, fork and wake",
    "many": "ten forks, ten wakes at once",
    "pause": "snapshot pause against changed memory",
    "bytes": "bytes written a snapshot",
    "memory": "RAM of idle forks",
    "disk": "snapshot pause against the disk's size",
    "crowd": "create among hundreds of sleepers",
    "volume": "attach, snapshot, clone and detach of volumes",
    "database": "create, clone and pgbench of databases",
}
"""Every group of figures, in the order in which they are measured."""


@dataclass(slots=True, kw_only=True)
class Report:
    """All that one run found."""

    host: HostFacts
    template: str
    quick: bool
    load_before: tuple[float, float, float]
    load_after: tuple[float, float, float] = (0.0, 0.0, 0.0)
    busy: bool = False
    """The machine was not ours alone before the run."""
    figures: list[Figure] = field(default_factory=list)
    pauses: list[PausePoint] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)


def choose(only: str | None) -> tuple[str, ...]:
    """Return the groups that a comma-separated list names; all for None. Raises `InvalidRequest`."""
    if only is None:
        return tuple(GROUPS)
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in GROUPS]
    if unknown or not names:
        raise InvalidRequest(
            f"{', '.join(unknown) or 'nothing'} is no figure",
            hint=f"choose of: {', '.join(GROUPS)}",
        )
    return tuple(name for name in GROUPS if name in names)


def run(
    home: Home,
    template: TemplateInfo,
    groups: Sequence[str],
    *,
    quick: bool,
    say: Callable[[str], None],
) -> Report:
    """Measure `groups`; a group that fails is reported as missed, and the others go on. Blocks for minutes.

    All sandboxes, snapshots and machines that it makes are gone when it returns or raises, also on Ctrl-C.

    Raises:
        HostNotReady: no machine can run here.
    """
    driver = choose_driver(home).driver
    found = loop_thread.run(driver.probe())
    if not found.usable:
        raise HostNotReady(found.reason, hint=found.fix)
    before = host.load()
    facts = host.facts(found, home)
    report = Report(
        host=facts,
        template=template.name,
        quick=quick,
        load_before=before,
        busy=host.is_busy(before[0], facts.cores),
    )
    if report.busy:
        say(
            f"warning: the load average is {before[0]:.1f} on {facts.cores} cores: "
            "these numbers are not this machine's best"
        )
    if facts.emulated:
        say(f"note: EMULATED: {facts.emulation}")
    with Rig(home, template, driver, quick=quick, say=say) as rig:
        for name in groups:
            say(f"{GROUPS[name]} ...")
            try:
                for figure in _measure(name, report.pauses)(rig):
                    report.figures.append(figure)
                    say(f"    {figure.what}: {figure.ours.median:.4g} {figure.unit}")
            except (TorporError, OSError) as exc:
                report.missed.append(Missed(name, str(exc)))
                say(f"    not measured: {exc}")
                rig.clear()
    report.load_after = host.load()
    return report


def _measure(name: str, points: list[PausePoint]) -> Callable[[Rig], Iterator[Figure]]:
    measures: dict[str, Callable[[Rig], Iterator[Figure]]] = {
        "boot": channel.cold_boot,
        "exec": channel.exec_round_trip,
        "files": channel.files,
        "comebacks": comebacks.one_at_a_time,
        "many": comebacks.ten_at_once,
        "pause": partial(pauses.pause, points=points),
        "bytes": pauses.written,
        "memory": memory.idle_forks,
        "disk": pauses.disk_size,
        "crowd": crowd.create_in_a_crowd,
        "volume": volumes.attach_to_detach,
        "database": databases.create_clone_and_pgbench,
    }
    return measures[name]
