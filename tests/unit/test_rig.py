"""The rig's own verdict: a run in which nothing ran, or one driver less, is no success."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from threading import Event

import pytest

from tests.rig import machine, suite
from tests.rig.host import agent
from tests.rig.parts import REPOSITORY
from tests.rig.source import changes, look, pack
from tests.rig.suite import Said, problem

_GOOD = """
tests/kvm/test_a.py::test_one[qemu] PASSED      [ 25%]
tests/kvm/test_a.py::test_two[qemu] PASSED      [ 50%]
tests/kvm/test_a.py::test_one[firecracker] PASSED      [ 75%]
tests/kvm/test_a.py::test_two[firecracker] PASSED      [100%]
"""


def test_what_every_driver_passed_is_good() -> None:
    assert problem(_GOOD, ["qemu", "firecracker"]) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("===== no tests ran in 0.1s =====", "no test passed with: qemu, firecracker"),
        (_GOOD.replace("[firecracker]", "[other]"), "no test passed with: firecracker"),
        (_GOOD.replace("two[firecracker] PASSED", "two[firecracker] SKIPPED"), "SKIPPED"),
        (_GOOD.replace("two[firecracker] PASSED", ""), "not every driver passed the same"),
    ],
)
def test_what_did_not_run_is_no_success(text: str, wanted: str) -> None:
    assert wanted in str(problem(text, ["qemu", "firecracker"]))


def test_of_a_test_that_ran_twice_the_last_result_counts() -> None:
    failed = _GOOD.replace("two[qemu] PASSED", "two[qemu] FAILED")
    again = "tests/kvm/test_a.py::test_two[qemu] {}      [100%]\n"
    drivers = ["qemu", "firecracker"]
    assert problem(failed + again.format("PASSED"), drivers) is None
    assert problem(failed + again.format("FAILED"), drivers) == (
        "tests/kvm/test_a.py::test_two[qemu] is FAILED"
    )


class ScriptedRig:
    """Says what a test wrote, run by run; an exception is the host's end."""

    def __init__(self, *says: tuple[int, str] | machine.RigFailed) -> None:
        self._says = list(says)
        self.ran: list[list[str]] = []

    def wait_ready(self) -> None:
        """It always is."""

    def run(
        self, argv: list[str], *, take: Callable[[bytes], None], limit_s: float, env: dict[str, str]
    ) -> int:
        self.ran.append(argv)
        said = self._says.pop(0)
        if isinstance(said, machine.RigFailed):
            take(_PASSED.encode())
            raise said
        status, text = said
        take(text.encode())
        return status


_PASSED = "tests/kvm/test_a.py::test_one[qemu] PASSED [ 50%]\n"
_FAILED = "tests/kvm/test_a.py::test_two[qemu] FAILED [100%]\n==== 1 failed in 1.0s ====\n"
_OTHER = "tests/kvm/test_a.py::test_two[qemu] PASSED [100%]\n==== 1 passed in 1.0s ====\n"


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ScriptedRig]]:
    """The hosts that are booted, one after the other; all are ended."""
    rigs: list[ScriptedRig] = []
    running: list[ScriptedRig] = []

    @contextlib.contextmanager
    def started() -> Iterator[ScriptedRig]:
        running.append(rigs[len(running)])
        rig = running[-1]
        try:
            yield rig
        finally:
            ended.append(rig)

    ended: list[ScriptedRig] = []
    monkeypatch.setattr(machine, "started", started)
    for name in ("host_image", "template_disk"):
        monkeypatch.setattr(suite, name, lambda: None)
    yield rigs
    assert len(ended) == len(running)


def test_what_failed_runs_once_more_in_the_same_host(hosts: list[ScriptedRig]) -> None:
    hosts += [ScriptedRig((1, _PASSED + _FAILED), (0, _OTHER))]
    assert suite.run_suite(["qemu"], ["-k", "x"], 60) == 0
    first, second = hosts[0].ran
    assert first[-2:] == ["-k", "x"]
    assert second[: len(first)] == first
    assert "--last-failed" in second


def test_what_fails_twice_fails(hosts: list[ScriptedRig]) -> None:
    hosts += [ScriptedRig((1, _PASSED + _FAILED), (1, _FAILED))]
    assert suite.run_suite(["qemu"], [], 60) == 1


def test_a_host_that_ends_is_replaced_once(
    hosts: list[ScriptedRig], capsys: pytest.CaptureFixture[str]
) -> None:
    gone = machine.RigFailed("the host ended; its console:\nKernel panic")
    hosts += [ScriptedRig(gone), ScriptedRig((0, _OTHER))]
    assert suite.run_suite(["qemu"], [], 60) == 0
    assert hosts[1].ran[0][-2:] == ["--deselect", "tests/kvm/test_a.py::test_one[qemu]"]
    assert "Kernel panic" in capsys.readouterr().err


def test_a_host_that_ends_twice_is_a_failure(hosts: list[ScriptedRig]) -> None:
    hosts += [ScriptedRig(machine.RigFailed("it ended")) for _ in range(2)]
    with pytest.raises(machine.RigFailed, match="it ended"):
        suite.run_suite(["qemu"], [], 60)


def test_a_host_that_was_ended_is_not_replaced(hosts: list[ScriptedRig]) -> None:
    rig = ScriptedRig()
    over = Event()
    over.set()
    with ExitStack() as entered, pytest.raises(machine.RigFailed, match="ended"):
        suite.Hosts(rig, entered, over).renew(machine.RigFailed("it ended"))  # type: ignore[arg-type]


def test_each_line_has_its_drivers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[bytes] = []
    monkeypatch.setattr(machine, "to_stdout", printed.append)
    said = Said("qemu")
    for piece in (b"one\ntw", b"o", b"\n\nthree\n"):
        said(piece)
    assert b"".join(printed) == b"qemu: one\nqemu: two\nqemu: \nqemu: three\n"
    assert said.text() == "one\ntwo\n\nthree\n"


def test_the_sources_that_go_in_are_those_of_this_tree() -> None:
    names = set(look())
    assert {"pyproject.toml", "src/torpor/errors.py", "tests/kvm/conftest.py"} <= names
    assert not any("__pycache__" in name for name in names)
    with tarfile.open(fileobj=BytesIO(pack({"a/b": REPOSITORY / "pyproject.toml"}))) as tar:
        assert tar.getnames() == ["a/b"]


def test_a_host_that_runs_is_told_what_changed_and_what_is_gone() -> None:
    before = {"same": [1, 1], "longer": [1, 1], "later": [1, 1], "gone": [1, 1]}
    now = {"same": [1, 1], "longer": [2, 1], "later": [1, 2], "new": [1, 1]}
    assert changes(before, now) == (["longer", "later", "new"], ["gone"])


@pytest.fixture
def port() -> Iterator[tuple[agent.Port, int]]:
    """The agent's port, and the end that its answers come out of."""
    theirs, ours = os.pipe()
    yield agent.Port(ours), theirs
    for fd in (theirs, ours):
        os.close(fd)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; print('said'); sys.exit(3)", 3),
        ("import os; print('said', flush=True); os.kill(os.getpid(), 9)", 137),
        ("import time; print('said', flush=True); time.sleep(60)", agent.LATE),
        (
            "import os, time; os.write(1, b'said'); os.close(1); os.close(2); time.sleep(60)",
            agent.LATE,
        ),
    ],
)
def test_a_command_in_the_host_ends_with_its_status_or_at_its_limit(
    port: tuple[agent.Port, int],
    code: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(agent, "SOURCE", tmp_path)
    request = {
        "run": [sys.executable, "-c", code],
        "limit_s": 2.0,
        "env": {"TMPDIR": str(tmp_path)},
    }
    began = time.monotonic()
    assert agent.run(port[0], request) == status
    assert time.monotonic() - began < 30
    answers = os.read(port[1], 1 << 16).splitlines()
    assert (
        b"".join(base64.b64decode(json.loads(line)["out"]) for line in answers).strip() == b"said"
    )
