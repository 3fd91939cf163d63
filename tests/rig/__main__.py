"""The rig's command line.

    python -m tests.rig build                         build what is missing
    python -m tests.rig run [--limit S] -- CMD...     boot a fresh host, run CMD in it, throw it away
    python -m tests.rig test [--limit S] [--drivers D,D]   run the suite of tests/kvm in fresh hosts, one a driver
    python -m tests.rig up DIR                        boot a host that stays, in the new folder DIR
    python -m tests.rig exec DIR [--limit S] -- CMD   renew its sources and run CMD in it
    python -m tests.rig down DIR                      end it

CMD begins in the source tree's folder, `python3` finds torpor and the tests. Its exit code becomes ours.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from tests.rig import machine
from tests.rig.image import host_image, say
from tests.rig.suite import run_suite
from tests.rig.template import template_disk


def main() -> int:
    """Do what the command line says."""
    words, command = _split(sys.argv[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.rig", description=__doc__)
    parser.add_argument("verb", choices=("build", "run", "test", "up", "exec", "down"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds that CMD may take")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for CMD")
    parser.add_argument(
        "--drivers", default="firecracker,qemu", help="whose machines are tried, by test"
    )
    given = parser.parse_args(words)
    env = dict(item.split("=", 1) for item in given.env)
    if given.verb in ("run", "exec") and not command:
        parser.error("give the command after --")
    if given.verb in ("up", "exec", "down") and given.folder is None:
        parser.error(f"{given.verb} wants the rig's folder")
    try:
        if given.verb == "test":
            return run_suite(given.drivers.split(","), command, given.limit)
        return _do(given.verb, given.folder, command, given.limit, env)
    except machine.RigFailed as exc:
        say(str(exc))
        return 125


def _do(verb: str, folder: Path, command: list[str], limit_s: float, env: dict[str, str]) -> int:
    began = time.monotonic()
    if verb == "build":
        host_image(), template_disk()
    elif verb == "run":
        with machine.booted() as rig:
            say(f"booted in {time.monotonic() - began:.0f} s")
            return rig.run(command, limit_s=limit_s, env=env)
    elif verb == "up":
        folder.mkdir(parents=True)
        rig = machine.start(folder.absolute(), dies_with_us=False)
        rig.wait_ready()
        say(f"booted in {time.monotonic() - began:.0f} s")
    elif verb == "exec":
        rig = machine.Rig.at(folder.absolute())
        rig.renew_source()
        return rig.run(command, limit_s=limit_s, env=env)
    else:
        machine.Rig.at(folder.absolute()).end()
        shutil.rmtree(folder)
    return 0


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
