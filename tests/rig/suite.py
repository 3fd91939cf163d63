"""The suite of tests/kvm in the emulated host, and the proof that it ran: each driver passed the same tests."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from tests.rig import machine
from tests.rig.image import host_image, say
from tests.rig.template import template_disk

_RESULT = re.compile(r"^tests/kvm/\S+\[(\w+)[^\]]*\] (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)
_CLOSING = re.compile(r"^=+ (.*\bin [\d.]+s.*?) =+$", re.MULTILINE)


def run_suite(drivers: Sequence[str], more: Sequence[str], limit_s: float) -> int:
    """Run it with all `drivers`, in `limit_s` seconds from now on; return 0 only if every test passed and some ran."""
    until = time.monotonic() + limit_s
    host_image()
    template_disk()
    said = bytearray()

    def take(data: bytes) -> None:
        said.extend(data)
        machine.to_stdout(data)

    argv = ["python3", "-m", "pytest", "-v", "-m", "kvm", "-p", "no:cacheprovider", "tests/kvm"]
    argv += ["-o", "faulthandler_timeout=0"]  # a daemon's start alone may take that long
    env = {"TORPOR_TEST_DRIVERS": ",".join(drivers)}
    with machine.booted() as rig:
        left = max(1.0, until - time.monotonic())
        status = rig.run([*argv, *more], limit_s=left, env=env, take=take)
    text = said.decode(errors="replace")
    closing = _CLOSING.findall(text)
    say(
        f"the tests in it ended with status {status}: {closing[-1] if closing else 'no closing line'}"
    )
    wrong = problem(text, drivers)
    if wrong:
        say(wrong)
    return status or int(wrong is not None)


def problem(text: str, drivers: Sequence[str]) -> str | None:
    """Return what is wrong with pytest's output `text` although it may have ended with 0; None: nothing."""
    passed = dict.fromkeys(drivers, 0)
    for driver, result in _RESULT.findall(text):
        if result != "PASSED":
            return f"a test of {driver} is {result}"
        passed[driver] = passed.get(driver, 0) + 1
    if not passed or min(passed.values()) == 0:
        return f"no test passed with: {', '.join(d for d, n in passed.items() if n == 0)}"
    if len(set(passed.values())) > 1:
        return f"not every driver passed the same tests: {passed}"
    return None
