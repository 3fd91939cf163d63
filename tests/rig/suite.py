"""The suite of tests/kvm in emulated hosts, one for each driver, and the proof that it ran: each passed the same tests."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event

from tests.rig import machine
from tests.rig.image import host_image, say
from tests.rig.template import template_disk

_RESULT = re.compile(
    r"^(tests/kvm/\S+?\[(\w+)[^\]]*\]) (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE
)
_CLOSING = re.compile(r"^=+ (.*\bin [\d.]+s.*?) =+$", re.MULTILINE)
_SUITE = ("python3", "-m", "pytest", "-v", "-m", "kvm", "tests/kvm", "-o", "cache_dir=/rig/pytest")
_NO_FAULT_HANDLER = ("-o", "faulthandler_timeout=0")  # a daemon's start alone may take that long
_WHAT_FAILED = ("--last-failed", "--last-failed-no-failures", "none")
_LATE = 124


def run_suite(drivers: Sequence[str], more: Sequence[str], limit_s: float) -> int:
    """Run it with all `drivers` side by side, in `limit_s` seconds from now on; 0 only if every test passed and some ran."""
    until = time.monotonic() + limit_s
    host_image()
    template_disk()
    over = Event()
    with ThreadPoolExecutor(len(drivers)) as pool, ExitStack() as hosts:
        rigs = [hosts.enter_context(machine.started()) for _ in drivers]
        hosts.callback(over.set)  # before these are ended
        runs = [
            pool.submit(_run, Hosts(rig, hosts, over), driver, more, until)
            for rig, driver in zip(rigs, drivers, strict=True)
        ]
        ended = [run.result() for run in runs]
    wrong = problem("".join(text for _, text in ended), drivers)
    if wrong:
        say(wrong)
    return max(status for status, _ in ended) or int(wrong is not None)


@dataclass(slots=True)
class Hosts:
    """The host that a driver's tests run in, and others after it; none once all is `over`."""

    rig: machine.Rig
    all: ExitStack
    over: Event

    def renew(self, why: machine.RigFailed) -> None:
        """Boot another one. Raises `why` when it is needed if all is over: then the one before did not end by itself."""
        if self.over.is_set():
            raise why
        self.rig = self.all.enter_context(machine.started())
        self.rig.wait_ready()


def _run(hosts: Hosts, driver: str, more: Sequence[str], until: float) -> tuple[int, str]:
    """Run it with one driver; what failed runs once more (docs/decisions/0018). Return the status and all that was said."""
    said = Said(driver)

    def run(*extra: str) -> int:
        left = max(1.0, until - time.monotonic())
        argv = [*_SUITE, *_NO_FAULT_HANDLER, *more, *extra]
        return hosts.rig.run(argv, limit_s=left, env={"TORPOR_TEST_DRIVERS": driver}, take=said)

    try:
        hosts.rig.wait_ready()
        status = run()
    except machine.RigFailed as exc:
        say(f"{driver}: {exc}\n{driver}: what had not passed by then is run in another host")
        hosts.renew(exc)
        status = run(*(word for test in _ended(said, "PASSED") for word in ("--deselect", test)))
    else:
        if status == 1:
            failed = ", ".join(_ended(said, "FAILED", "ERROR"))
            say(f"{driver}: what failed is run once more: {failed}")
            status = run(*_WHAT_FAILED)
    closing = _CLOSING.findall(said.text())
    late = ", its time was over" if status == _LATE else ""
    say(f"{driver} ended with status {status}{late}: {' / '.join(closing) or 'no closing line'}")
    return status, said.text()


def _ended(said: Said, *how: str) -> list[str]:
    """Return the tests that ended so."""
    return [test for test, _, result in _RESULT.findall(said.text()) if result in how]


class Said:
    """What a run says: kept, and printed line by line, each with the driver's name before it."""

    def __init__(self, driver: str) -> None:
        self._mark = f"{driver}: ".encode()
        self._all = bytearray()
        self._printed = 0

    def __call__(self, data: bytes) -> None:
        """Take what was said."""
        self._all += data
        end = self._all.rfind(b"\n") + 1
        if end > self._printed:
            lines = bytes(self._all[self._printed : end]).splitlines(keepends=True)
            machine.to_stdout(b"".join(self._mark + line for line in lines))
            self._printed = end

    def text(self) -> str:
        """Return all of it."""
        return self._all.decode(errors="replace")


def problem(text: str, drivers: Sequence[str]) -> str | None:
    """Return what is wrong with pytest's output `text` although it may have ended with 0; None: nothing.

    Of a test that ran twice the last result counts.
    """
    results = {test: (driver, result) for test, driver, result in _RESULT.findall(text)}
    passed = dict.fromkeys(drivers, 0)
    wrong = [f"{test} is {result}" for test, (_, result) in results.items() if result != "PASSED"]
    if wrong:
        return ", ".join(wrong)
    for driver, _ in results.values():
        passed[driver] = passed.get(driver, 0) + 1
    if not passed or min(passed.values()) == 0:
        return f"no test passed with: {', '.join(d for d, n in passed.items() if n == 0)}"
    if len(set(passed.values())) > 1:
        return f"not every driver passed the same tests: {passed}"
    return None
