"""The emulated host's disk and kernel, built once for each digest of what they are made of."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.rig import parts
from torpor.base.fsio import locked, publish_dir
from torpor.templates import debian, recipe
from torpor.templates.plan import BUILDER_VERSION, BuildPlan, make_plan
from torpor.templates.recipe import RecipeFile

HOST = Path(__file__).parent / "host"

_VERSION = 1
"""Part of the digest; raised when the same inputs would come out otherwise."""
_FILES = ("host.toml", "boot.sh")
_COMPILE = f"python{parts.PYTHON} -m compileall -q -j 0 /opt/rig || true"  # some packages carry code of other versions


def cache() -> Path:
    """Return the folder that built images are kept in: `TORPOR_RIG_CACHE`, else one of the user's."""
    named = os.environ.get("TORPOR_RIG_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = Path(named).absolute() if named else base / "torpor-rig"
    found.mkdir(parents=True, exist_ok=True)
    return found


def host_image() -> Path:
    """Return the folder with the host's `disk.raw`, `vmlinuz` and `initrd`, built now if it is not there."""
    return cached(f"host-{_digest()}", _build)


def _digest() -> str:
    hasher = hashlib.sha256()
    for name in _FILES:
        hasher.update((HOST / name).read_bytes() + b"\0")
    hasher.update((parts.REPOSITORY / "constraints.txt").read_bytes())
    made_of = (
        _VERSION,
        BUILDER_VERSION,
        parts.PYTHON,
        parts.FIRECRACKER_SHA256,
        parts.requirements(),
    )
    hasher.update(json.dumps(made_of).encode())
    return hasher.hexdigest()[:16]


def _build(work: Path) -> Path:
    say("building the host's image")
    opt = work / "rig"
    opt.mkdir(mode=0o755)
    (opt / "site").mkdir()
    (work / "wheel").mkdir()
    parts.install_packages(opt / "site")
    parts.take_firecracker(opt, work / "wheel")
    shutil.copy(HOST / "boot.sh", opt / "boot.sh")
    (opt / "boot.sh").chmod(0o755)
    out = work / "out"
    out.mkdir()
    asyncio.run(bootstrap(_plan(opt), work, out))
    return out


def _plan(opt: Path) -> BuildPlan:
    made = recipe.load(HOST / "host.toml")
    files = (RecipeFile(target="/opt/rig", source=opt),)
    return make_plan(replace(made, files=files, run=(_COMPILE,)))


async def bootstrap(plan: BuildPlan, work: Path, out: Path) -> None:
    """Make `disk.raw`, `vmlinuz` and `initrd` in `out`, saying how far it is; nothing is booted."""
    step = ""
    async for said in debian.bootstrap(plan, work, out):
        if said.step != step:
            step = said.step
            say(f"image: {step}: {said.message}")


def cached(name: str, build: Callable[[Path], Path]) -> Path:
    """Return folder `name` of the cache, made by `build` in an empty work folder if it is not there."""
    folder = cache() / name
    with locked(cache() / f".{name}.lock"):
        if not folder.exists():
            with work_folder() as work:
                publish_dir(build(work), folder)
    return folder


@contextmanager
def work_folder() -> Iterator[Path]:
    """Enter with an empty folder in the cache that is gone afterwards."""
    work = Path(tempfile.mkdtemp(prefix=".work.", dir=cache()))
    work.chmod(0o711)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def say(text: str) -> None:
    """Tell the caller how far it is."""
    print(f"rig: {text}", file=sys.stderr, flush=True)
