"""The sources' compiled files, made outside by the emulated host's own Python, as they would take minutes in there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.rig.image import cached, host_image
from tests.rig.parts import PYTHON, REPOSITORY

_TAG = f"cpython-{PYTHON.replace('.', '')}"
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_NEEDED = ("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libz.so.1", "libexpat.so.1")
_SOURCES = ("src", "tests/kvm", "tests/rig")
INSIDE = "/rig/src"
"""Where the tree is in the host; tracebacks name it."""


def compiled(names: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the name in the tree and the file of each compiled file that belongs to one of `names`."""
    image = host_image()
    python = cached(f"python-{image.name}", lambda work: _take(image / "disk.raw", work))
    kept = image.parent / f"compiled-{image.name}"
    _compile(python, kept)
    for name in names:
        if name.endswith(".py"):
            file = f"{Path(name).stem}.{_TAG}.pyc"
            made = kept / str(REPOSITORY).lstrip("/") / Path(name).parent / file
            if made.exists():
                yield f"{Path(name).parent}/__pycache__/{file}", made


def _compile(python: Path, kept: Path) -> None:
    """Bring `kept` up to date: what did not change since the last time is left."""
    argv = [
        str(python / "lib" / _NEEDED[0]),
        *("--library-path", str(python / "lib")),
        str(python / f"python{PYTHON}"),
        *("-m", "compileall", "-q", "-s", str(REPOSITORY), "-p", INSIDE),
        *(str(REPOSITORY / folder) for folder in _SOURCES),
    ]
    env = {"PATH": os.environ["PATH"], "PYTHONHOME": str(python), "PYTHONPYCACHEPREFIX": str(kept)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(f"rig: the sources cannot be compiled: {done.stdout}{done.stderr}")


def _take(disk: Path, work: Path) -> Path:
    """Copy Python out of the host's disk into a folder that it runs from."""
    out = work / "out"
    (out / "lib").mkdir(parents=True)
    requests = [
        f"dump /usr/bin/python{PYTHON} {out}/python{PYTHON}",
        f"rdump /usr/lib/python{PYTHON} {out}/lib",
    ]
    libraries = [f"dump {_LIBRARIES}/{_target(disk, name)} {out}/lib/{name}" for name in _NEEDED]
    _debugfs(disk, [*requests, *libraries])
    for name in (f"python{PYTHON}", f"lib/{_NEEDED[0]}"):
        (out / name).chmod(0o755)
    return out


def _target(disk: Path, name: str) -> str:
    """Return the file that a library's name stands for; debugfs follows no links."""
    said = _debugfs(disk, [f"stat {_LIBRARIES}/{name}"])
    found = [line for line in said.splitlines() if line.startswith("Fast link dest:")]
    return found[0].split('"')[1] if found else name


def _debugfs(disk: Path, requests: list[str]) -> str:
    done = subprocess.run(
        ["debugfs", "-f", "-", str(disk)],
        input="\n".join(requests),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout
