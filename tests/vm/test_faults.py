"""What broke real agents, done to fake ones: each fault is found by the probe that is meant to, and undone.

Nothing is found by chance. Each change has a control: the same without the fault, with all checks of that agent,
which is kept. A change with faults has only the checks that are meant to find them; each of them passes before and
fails after it. Here faults that touch different things share a change; `make faults` makes a change for each alone.
The agents, the provider that they talk to, and the faults are in `tests/vm/agents`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.style.markdown import ROOT
from tests.vm.agents.checks import only
from tests.vm.agents.faults import (
    ALL,
    ALONE,
    GROUPS,
    HERMES,
    KEPT_OUT,
    NOT_TRIED,
    REPORTS,
    UPDATES,
    Fault,
    H,
    Update,
)
from torpor import Change, Sandbox, Snapshot
from torpor.base.home import Home
from torpor.model_changes import ChangeState

TWO_FILES = """
import os
files = [os.open(f"/root/{name}", os.O_WRONLY | os.O_CREAT) for name in ("first", "second")]
number = 0
while True:
    number += 1
    for file in files:
        os.pwrite(file, b"%012d\\n" % number, 0)
"""
Machine = tuple[Sandbox, Snapshot]
Controls = Callable[[Update], None]


@pytest.fixture(scope="module")
def used(base: str, vm_home: Home) -> Iterator[Machine]:
    """A machine with the three agents in it, and the point at which they are well."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORPOR_HOME", str(vm_home.root))
    sandbox = Sandbox.create(template=base, network="none", vcpus=1)
    try:
        sandbox.filesystem.upload(Path(__file__).parent / "agents", "/opt/setup")
        sandbox.exec("sh /opt/setup/setup.sh", user="root", check=True, timeout_seconds=300)
        yield sandbox, sandbox.snapshot(label="three agents")
    finally:
        sandbox.delete()
        for snapshot in sandbox.snapshots():
            snapshot.delete()
        patch.undo()


@pytest.fixture(scope="module")
def controls(used: Machine) -> Controls:
    """Makes an update that is good, once for all who ask: it is kept, or none of its faults shows anything."""
    sandbox, start = used
    made: dict[str, Change] = {}

    def make(update: Update) -> None:
        (name,) = (name for name, known in UPDATES.items() if known is update)
        if name not in made:
            sandbox.rollback(start.id)
            made[name] = changed(sandbox, update, update.command, update.checks)
            sandbox.rollback(start.id)
        control = made[name]
        assert control.verdict == "kept", f"without a fault {name} is kept: {control.report}"
        assert control.report is not None
        assert control.report.data["snapshot"]["consistency"] == "application", control.report
        if update.profile == "hermes":
            cursor = control.report.data["snapshot"]["quiesce"]["cursor"]
            assert cursor.startswith("/home/agent/.hermes/state.db, written 20"), control.report
        (look,) = control.report.data["looks"]
        assert {check["status"] for check in look["checks"]["checks"]} == {"pass"}, control.report

    return make


def changed(
    sandbox: Sandbox, update: Update, command: str, checks: dict[str, Any], **options: Any
) -> Change:
    """Make a change as a user would; return when it is decided."""
    return sandbox.change(
        "an update",
        run=command,
        user="root",
        checks=checks,
        profile=update.profile,
        kind="update",
        reboot=update.reboot,
        memory="ram",  # much faster here than a boot; test_changes boots
        **options,
    ).wait()


def inject(sandbox: Sandbox, faults: list[Fault]) -> None:
    """Make one change with these faults in it: each of them is found, nothing else is, and the machine is put back."""
    (update,) = {fault.update.command: fault.update for fault in faults}.values()
    probes = {fault.found_by for fault in faults if "/" in fault.found_by}
    endings = {fault.found_by for fault in faults} - probes or {"checks"}
    wanted = only(update.checks, probes or {"required/command:recall"})
    breaks = " && ".join(f"{{ {fault.breaks}; }}" for fault in faults)
    options = {key: value for fault in faults for key, value in fault.options.items()}
    sandbox.exec("echo precious > /root/work", user="root", check=True)
    command = f"{update.command} && touch /root/changed && {breaks}"
    broken = changed(sandbox, update, command, wanted, **options)
    assert broken.verdict == "rolled_back", f"it was not noticed: {broken.report}"
    assert {broken.info.ending} == endings, broken.report
    assert broken.report is not None
    data = broken.report.data
    assert blamed(data) == probes, f"found by something else: {broken.report}"
    said = data["command"]["stdout_tail"].split()
    assert said == [fault.says for fault in faults if fault.says], broken.report
    assert data["undone"]["verdict"] == "pass", f"it is well again: {broken.report}"
    left = sandbox.exec("cat /root/work; ls /root/changed", user="root")
    assert left.stdout == "precious\n", "all of it is back"


def blamed(report: Any) -> set[str]:
    """Return the checks that fail, and passed before."""
    found = set()
    for probe in report["probes"]:
        assert probe["before"] is not None
        assert probe["after"] is not None
        if (probe["before"]["outcome"], probe["after"]["outcome"]) == ("pass", "fail"):
            found.add(probe["name"])
    return found


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_faults_are_found_and_undone(
    used: Machine, controls: Controls, names: tuple[str, ...]
) -> None:
    faults = [ALL[name] for name in names]
    controls(faults[0].update)
    inject(used[0], faults)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_each_fault_alone_is_found_and_undone(used: Machine, controls: Controls, name: str) -> None:
    controls(ALL[name].update)
    inject(used[0], [ALL[name]])


def test_every_fault_is_in_one_group_and_has_a_probe_of_its_own_there() -> None:
    assert sorted(name for group in (*GROUPS, ALONE) for name in group) == sorted(ALL)
    for group in GROUPS:
        faults = [ALL[name] for name in group]
        assert len({fault.found_by for fault in faults}) == len(faults)
        assert len({id(fault.update) for fault in faults}) == 1
        for fault in faults:
            found = only(fault.update.checks, {fault.found_by})["required"]
            assert found or "/" not in fault.found_by, f"there is no check {fault.found_by}"


def test_every_report_is_tried_or_said_not_to_be() -> None:
    tried = {fault.report for fault in ALL.values()}
    assert tried | set(KEPT_OUT) | set(NOT_TRIED) == set(REPORTS)
    assert not set(NOT_TRIED) & (tried | set(KEPT_OUT))
    assert {name for name in KEPT_OUT.values() if name not in globals()} == set()
    page = (ROOT / "docs/reference/faults.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\b[HAO]\d+\b", page)) == set(REPORTS)
    shown = re.findall(r"^\| ([HAO]\d+) \|", page, re.MULTILINE)
    assert sorted(shown) == sorted(fault.report for fault in ALL.values())


def test_a_way_back_is_whole_and_a_copy_touches_nothing_of_the_original(used: Machine) -> None:
    """What file by file backups and restores into a live home did to real agents: here it is kept out."""
    sandbox, start = used
    sandbox.rollback(start.id)
    sandbox.filesystem.write("/root/two_files.py", TWO_FILES)
    storm = sandbox.exec("python3 /root/two_files.py", user="root", background=True)
    sandbox.exec(
        "mount -t tmpfs -o size=64k none /tmp && ! yes > /tmp/full 2>&1", user="root", check=True
    )
    torn = sandbox.exec(
        "until [ -s /root/second ]; do sleep 0.1; done; cat /root/first; sleep 1; cat /root/second",
        user="root",
    )
    first, second = map(int, torn.stdout.split())
    assert second - first > 1, "control: copied one after the other they are of two times"
    snap = sandbox.snapshot(label="under a storm, with /tmp full")
    storm.kill()

    with Sandbox.restore(snap.id, network="none") as copy:
        ruin = f"rm -r {H}/skills {H}/state.db* && systemctl stop hermes-gateway"
        copy.exec(ruin, user="root", check=True)
    left = sandbox.exec(f"ls {H}/skills | wc -l; pgrep -fc '[h]ermes.py gateway run'", user="root")
    assert left.stdout.split() == ["4", "1"], "its files, and one gateway"

    sandbox.rollback(snap.id, memory="cold")
    pair = sandbox.exec("cat /root/first /root/second", user="root", check=True).stdout.split()
    assert int(pair[0]) - int(pair[1]) in (0, 1), "of one time, on the disk"
    sandbox.exec("systemctl start fake-provider hermes-gateway", user="root", check=True)
    wanted = {f"required/sqlite:{H}/state.db", "required/turn:resumed", "required/turn:message"}
    report = sandbox.check(only(HERMES.checks, wanted), profile="hermes")
    assert {result.key for result in report.results if result.outcome == "pass"} == wanted, report


def test_a_provider_that_is_away_rolls_no_good_change_back(used: Machine) -> None:
    sandbox, start = used
    sandbox.rollback(start.id)
    away = "mkdir -p /run/fake && touch /run/fake/provider-down"
    turn = only(HERMES.checks, {"required/turn:new", "required/command:recall"})
    change = sandbox.change(
        "an update",
        run=f"{HERMES.command} && {away}",
        user="root",
        checks=turn,
        profile="hermes",
        kind="update",
        probation_seconds=3600,
        interval_seconds=5,
        memory="ram",
    ).start()
    looks = 0
    for event in change.events():
        is_turn = event.name == "check" and event.data["name"] == "required/turn:new"
        looks += is_turn and event.data["phase"] == "probation"
        if is_turn and event.data["phase"] != "before":
            assert event.data["outcome"] == "inconclusive", event
        if looks == 2:
            break
    change.refresh()
    assert change.state is ChangeState.PROBATION, "it goes on"
    assert "provider" in str(change.report)
    sandbox.exec("rm /run/fake/provider-down", user="root", check=True)
    for event in change.events():
        said = [event.data.get(key) for key in ("phase", "name", "outcome")]
        if said == ["probation", "required/turn:new", "pass"]:
            break
    assert change.confirm().verdict == "kept", change.report
    assert "0.19.0" in sandbox.exec("hermes --version", user="agent", check=True).stdout


def test_a_hook_that_hangs_ends_in_time_and_nothing_is_changed(used: Machine) -> None:
    sandbox, _ = used

    def made(prepare: str) -> Change:
        profile = (
            "format: 1\nname: mine\nquiesce:\n"
            f"  - {{name: agent, kind: command, prepare: {prepare}, hold: 'true', required: true,"
            " prepare_timeout_seconds: 2}\n"
        )
        return sandbox.change(
            "a hook",
            run="touch /root/changed",
            profile=profile,
            consistency="application",
            inventory=False,
            memory="ram",
        ).wait()

    sandbox.exec("rm -f /root/changed", user="root", check=True)
    stuck = made("sleep 998")
    assert (stuck.state, stuck.verdict) == (ChangeState.FAILED, None), stuck.report
    assert "hook agent: " in stuck.why
    assert "ran longer than 2" in stuck.why
    left = sandbox.exec("pgrep -f '[s]leep 998'; ls /root/changed", user="root")
    assert left.stdout == "", "the hook is gone, and the command was never run"
    control = made("'true'")
    assert control.verdict == "kept", control.report
    assert control.report is not None
    hooks = control.report.data["snapshot"]["quiesce"]["hooks"]
    assert ("agent", "held") in [(hook["name"], hook["state"]) for hook in hooks]


def test_what_was_broken_before_is_not_the_changes_fault(used: Machine) -> None:
    sandbox, start = used
    fault = ALL["a required tool server is away"]
    sandbox.rollback(start.id)
    sandbox.exec(fault.breaks, user="root", check=True)
    both = only(HERMES.checks, {fault.found_by, "required/command:recall"})
    found = changed(sandbox, HERMES, HERMES.command, both)
    assert found.verdict == "kept", found.report
    assert "failed before the change too" in " ".join(str(found.report).split())
