"""kill -9 of the daemon at every transition of a change, and of its machine with it, as when the host dies.

The next daemon goes on. What was not verified is not kept, a command is never started twice, and nothing is left.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

import torpor
from tests.crash.paper import PaperGuest
from tests.fakes.driver import FakeDriver
from torpor import Change, Client, Sandbox, Snapshot
from torpor.base.home import Home
from torpor.errors import TorporError
from torpor.model import SandboxState
from torpor.model_changes import ChangeState
from torpor.sdk.loop import loop_thread

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(300),
]  # a daemon each, on a host that may be busy
S = ChangeState
REPO = Path(__file__).parents[2]

GOOD = "write /model new; sleep 0.3"
BAD = "write /model new; fail"
MAKING = [
    "change.quiescing",
    "change.captured",
    "change.snapshotted",
    "change.changing",
    "change.started",
    "change.ended",
    "change.verifying",
    "change.verified",
]
KEEPING = ["change.closed", "change.kept"]
UNDOING = [
    "change.undoing",
    "change.saved",
    "rollback.ended",
    "change.back",
    "change.closed",
    "change.undone",
]
IN_ENGINE = {"rollback.ended"}


class Daemon:
    """The paper daemon of a home, in a process of its own."""

    begun: ClassVar[list[subprocess.Popen[bytes]]] = []

    def __init__(self, home: Home, fault: str = "") -> None:
        read, write = os.pipe()
        with (home.root.parent / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.paper", "--home", str(home.root), "--ready-fd", str(write)],
                env={**os.environ, "TORPOR_FAULT": fault},
                cwd=REPO,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write,),
            )  # fmt: skip
        self.begun.append(self.process)
        os.close(write)
        with os.fdopen(read) as ready:
            said = ready.read().strip()
        log_text = (home.root.parent / "daemon.log").read_text()
        assert said == "ready" or self.died(), log_text[-4000:]

    def died(self) -> bool:
        return self.process.wait(120) == -signal.SIGKILL

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """End it as a user does."""
        self.process.terminate()
        assert self.process.wait(60) == 0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    home.prepare()
    yield home
    loop_thread.close()
    for process in Daemon.begun:  # of a test that failed
        process.kill()
        process.wait()
    Daemon.begun.clear()
    for folder in home.sandboxes.iterdir():
        asyncio.run(FakeDriver().sweep(folder))


@pytest.fixture
def client(home: Home) -> Client:
    return Client(url=f"unix://{home.socket}")


def machine_of(home: Home, sandbox: Sandbox) -> PaperGuest:
    return PaperGuest(home, home.sandboxes / sandbox.id)


def end_machine(home: Home, sandbox: Sandbox) -> None:
    asyncio.run(FakeDriver().sweep(home.sandboxes / sandbox.id))


def begun(home: Home, client: Client, command: str, **options: object) -> tuple[Sandbox, str]:
    """Return a sandbox with an old model, and the id of a change of it that was begun."""
    sandbox = Sandbox.create("base", client=client)
    sandbox.exec("write /model old", background=True)
    change = sandbox.change("a change", run=command, inventory=False, author="me", **options)  # type: ignore[arg-type]
    return sandbox, change.start().id


def ended(client: Client, change_id: str) -> Change:
    return Change.get(change_id, client=client).wait()


def check(home: Home, client: Client, sandbox: Sandbox, change: Change, want: ChangeState) -> None:
    """The machine is that of the change's end, and nothing holds on to anything."""
    assert change.state is want, (
        change.info,
        (home.root.parent / "daemon.log").read_text()[-4000:],
    )
    assert sandbox.refresh().state is SandboxState.RUNNING
    model = {S.KEPT: "new", S.ROLLED_BACK: "old", S.FAILED: "old"}[want]
    assert machine_of(home, sandbox).contents()["/model"] == model
    log = home.root / "starts.log"
    starts = log.read_text().splitlines() if log.exists() else []
    mine = [line for line in starts if line == f"exec_{change.id[4:]}"]
    assert len(mine) <= 1, "it was started twice"
    snapshots = Snapshot.list(client=client)
    assert all(not s.info.protected for s in snapshots)
    labels = [s.label for s in snapshots if s.label]
    assert len(labels) == len(set(labels))
    if want is not S.FAILED:
        assert f"before-{change.id}" in labels
    assert not (home.changes / change.id).exists()
    sandbox.hibernate()  # nothing forbids it any more
    sandbox.wake()
    assert len([f for f in home.sandboxes.iterdir() if FakeDriver()._found(f)]) == 1
    assert (home.workflows.stat().st_mode & 0o777) == 0o600


def crash(
    home: Home, client: Client, point: str, command: str, **options: object
) -> tuple[Sandbox, str]:
    daemon = Daemon(home, point)
    try:
        sandbox, change_id = begun(home, client, command, **options)
        assert daemon.died(), f"{point} was never reached"
    finally:
        daemon.kill()
    loop_thread.close()
    return sandbox, change_id


@pytest.mark.parametrize("point", [*MAKING, *KEEPING])
def test_a_good_change_goes_on(home: Home, client: Client, point: str) -> None:
    sandbox, change_id = crash(home, client, point, GOOD)
    daemon = Daemon(home)
    try:
        check(home, client, sandbox, ended(client, change_id), S.KEPT)
    finally:
        daemon.stop()


@pytest.mark.parametrize("point", UNDOING)
def test_a_bad_change_is_undone_all_the_same(home: Home, client: Client, point: str) -> None:
    sandbox, change_id = crash(home, client, point, BAD)
    daemon = Daemon(home)
    try:
        change = ended(client, change_id)
        check(home, client, sandbox, change, S.ROLLED_BACK)
        assert change.info.failed_snapshot_id is not None
        assert change.info.ending == "command"
        sandbox.rollback(change.info.failed_snapshot_id)
        assert machine_of(home, sandbox).contents()["/model"] == "new", "it can be studied"
    finally:
        daemon.stop()


@pytest.mark.parametrize(
    ("point", "ending"),
    [("change.changing", "none"), ("change.started", "machine"), ("change.probation", "machine")],
)
def test_a_host_that_dies_leaves_nothing_unverified(
    home: Home, client: Client, point: str, ending: str
) -> None:
    """Daemon and machine end together; what nobody verified is put back."""
    sandbox, change_id = crash(home, client, point, GOOD, probation_seconds=600, interval_seconds=1)
    end_machine(home, sandbox)
    daemon = Daemon(home)
    try:
        change = ended(client, change_id)
        check(home, client, sandbox, change, S.ROLLED_BACK)
        assert change.info.ending == ending
    finally:
        daemon.stop()


def test_before_the_workflow_exists_nothing_was_changed(home: Home, client: Client) -> None:
    daemon = Daemon(home, "change.idle")
    sandbox = Sandbox.create("base", client=client)
    sandbox.exec("write /model old", background=True)
    with pytest.raises(TorporError):
        sandbox.change("a change", run=GOOD, inventory=False).start()
    assert daemon.died()
    daemon = Daemon(home)
    try:
        (found,) = Change.list(client=client)
        check(home, client, sandbox, found.wait(), S.FAILED)
    finally:
        daemon.stop()


@pytest.mark.parametrize("word", ["confirm", "silence", "reject"])
def test_probation_survives(home: Home, client: Client, word: str) -> None:
    seconds = 4.0 if word == "silence" else 600.0
    sandbox, change_id = crash(home, client, "change.probation", GOOD, probation_seconds=seconds)
    daemon = Daemon(home)
    try:
        change = Change.get(change_id, client=client)
        assert change.state is S.PROBATION
        if word == "confirm":
            change.confirm()
        elif word == "reject":
            change.rollback("no good")
        want = S.KEPT if word == "confirm" else S.ROLLED_BACK
        check(home, client, sandbox, ended(client, change_id), want)
    finally:
        daemon.stop()


def test_a_daemon_that_is_stopped_politely_goes_on_too(home: Home, client: Client) -> None:
    daemon = Daemon(home)
    sandbox, change_id = begun(home, client, "write /model new; sleep 3", probation_seconds=600)
    until(client, change_id, S.CHANGING)
    daemon.stop()
    loop_thread.close()
    daemon = Daemon(home)
    until(client, change_id, S.PROBATION)
    daemon.stop()
    loop_thread.close()
    daemon = Daemon(home)
    try:
        assert Change.get(change_id, client=client).confirm().verdict == "kept"
        check(home, client, sandbox, Change.get(change_id, client=client), S.KEPT)
    finally:
        daemon.stop()


def test_killed_again_and_again(home: Home, client: Client) -> None:
    """A daemon that dies at each step in turn comes to the end all the same."""
    sandbox, change_id = crash(home, client, "change.snapshotted", BAD)
    for point in (
        "change.started",
        "change.undoing",
        "change.saved",
        "rollback.started",
        "change.back",
    ):
        daemon = Daemon(home, point)
        assert daemon.died(), point
    daemon = Daemon(home)
    try:
        check(home, client, sandbox, ended(client, change_id), S.ROLLED_BACK)
    finally:
        daemon.stop()


def until(client: Client, change_id: str, state: ChangeState, within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while Change.get(change_id, client=client).state is not state:
        assert time.monotonic() < end, f"{change_id} never was {state}"
        time.sleep(0.05)


def test_every_point_of_a_change_is_tried() -> None:
    source = Path(torpor.__file__).parent / "recovery"
    named = set()
    for path in source.rglob("*.py"):
        named |= set(re.findall(r'reach\("(change\.[a-z.]+)"\)', path.read_text()))
    tried = {*MAKING, *KEEPING, *UNDOING, "change.idle", "change.probation"} - IN_ENGINE
    assert named == tried
