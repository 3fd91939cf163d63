"""Fetching a Firecracker release and putting its programs in place, all of them or none."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import re
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import httpx

from torpor.base.fsio import write_atomic
from torpor.base.proc import HostCommandFailed, run
from torpor.base.units import MIB, format_bytes
from torpor.errors import (
    Conflict,
    DataDamaged,
    HostNotReady,
    LimitExceeded,
    NotAllowed,
    OperationTimeout,
)
from torpor.hostsetup.release import PINNED, Release

PROGRAMS = ("jailer", "firecracker")
"""In the order in which they are put in place: where Firecracker is, its jailer is too."""

_LIMIT_BYTES = 64 * MIB
"""Of the archive and of each program; a release has some 10 MB."""
_DOWNLOAD_S = 600.0
_STALLED_S = 30.0


@dataclass(frozen=True, slots=True)
class Installed:
    """Where the programs are."""

    version: str
    programs: tuple[Path, ...]
    changed: bool
    """False: they were there already."""


def default_folder() -> Path:
    """Return where programs go, one of the folders in which the driver looks: everybody's as root, else this user's."""
    return Path("/usr/local/bin") if os.geteuid() == 0 else Path.home() / ".local/bin"


async def install(folder: Path, *, release: Release = PINNED, force: bool = False) -> Installed:
    """Put the programs of `release` into `folder`; nothing is fetched when they are there.

    Raises:
        HostNotReady: this is no host for it, or the archive cannot be fetched.
        Conflict: another version is there and `force` is off; nothing was changed.
        NotAllowed: the folder is not ours to write.
        DataDamaged: what was fetched is not the release; nothing was changed.
        LimitExceeded, OperationTimeout: it is too large or takes too long.
    """
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise HostNotReady(
            f"this host is {platform.system()} on {platform.machine()}; Linux on x86_64 is wanted"
        )
    targets = tuple(folder / name for name in PROGRAMS)
    there = {path.name: await version_of(path) for path in targets if path.exists()}
    if set(there.values()) == {release.version} and len(there) == len(PROGRAMS) and not force:
        return Installed(release.version, targets, changed=False)
    others = {name: found for name, found in there.items() if found != release.version}
    if others and not force:
        name, found = next(iter(others.items()))
        raise Conflict(
            f"{folder / name} is there already and is {found or 'no program that says its version'}; "
            f"{release.version} is wanted",
            hint="give --force to replace it, or let TORPOR_FIRECRACKER name the one to use",
        )
    await asyncio.to_thread(_check_writable, folder)
    with tempfile.TemporaryDirectory(prefix="torpor-setup.") as work:
        archive = Path(work) / "release.tgz"
        await _fetch(release, archive)
        programs = await asyncio.to_thread(_unpack, release, archive)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    for path in targets:
        await asyncio.to_thread(write_atomic, path, programs[path.name], mode=0o755)
    found = await version_of(folder / "firecracker")
    if found != release.version:
        raise HostNotReady(
            f"{folder / 'firecracker'} was installed, but does not run here: it says it is {found!r}",
            hint=f"try: {folder / 'firecracker'} --version",
        )
    return Installed(release.version, targets, changed=True)


async def look_at(program: Path) -> Installed:
    """Return what a Firecracker is that somebody else put there.

    Raises:
        HostNotReady: it is missing or does not run here.
    """
    program = Path(shutil.which(program) or program)
    found = await version_of(program)
    if found is None:
        raise HostNotReady(
            f"TORPOR_FIRECRACKER names {program}, which does not say that it is a Firecracker",
            hint=f"try: {program} --version  or unset TORPOR_FIRECRACKER to have one installed",
        )
    return Installed(found, (program,), changed=False)


async def version_of(program: Path) -> str | None:
    """Return the version that a Firecracker program says it is; None when it says none."""
    try:
        done = await run([str(program), "--version"], timeout_s=20)
    except (OSError, HostCommandFailed, OperationTimeout):
        return None
    said = done.stdout.decode("utf-8", "replace")
    found = re.search(r"^(?:Firecracker|Jailer) v(\d+\.\d+\.\d+)", said, re.MULTILINE)
    return found[1] if found else None


def _check_writable(folder: Path) -> None:
    """Raise `NotAllowed` unless programs can be put there; nothing is made yet."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise NotAllowed(f"{there} is no folder that is ours to write", hint=_AS_ROOT)


_AS_ROOT = "run it as root, or give a folder of yours: --into DIR"


async def _fetch(release: Release, target: Path) -> None:
    hasher = hashlib.sha256()
    size = 0
    try:
        async with (
            asyncio.timeout(_DOWNLOAD_S),
            httpx.AsyncClient(follow_redirects=True, timeout=_STALLED_S) as client,
            client.stream("GET", release.url) as response,
        ):
            response.raise_for_status()
            with target.open("wb") as file:
                async for piece in response.aiter_raw():
                    size += len(piece)
                    if size > _LIMIT_BYTES:
                        raise LimitExceeded(
                            f"{release.url} is over {format_bytes(_LIMIT_BYTES)}; nothing was installed"
                        )
                    hasher.update(piece)
                    file.write(piece)
    except TimeoutError as exc:
        raise OperationTimeout(f"{release.url} took longer than {_DOWNLOAD_S:g} s") from exc
    except httpx.HTTPError as exc:
        raise HostNotReady(
            f"{release.url} cannot be fetched: {str(exc) or type(exc).__name__}",
            hint="on a host without internet, copy a Firecracker there and let TORPOR_FIRECRACKER name it",
        ) from exc
    if hasher.hexdigest() != release.sha256:
        raise DataDamaged(
            f"{release.url} has the SHA-256 {hasher.hexdigest()}; {release.sha256} is wanted; "
            "nothing was installed",
            hint="something between here and there changes it; try again from another network",
        )


def _unpack(release: Release, archive: Path) -> dict[str, bytes]:
    """Return the programs' bytes; their digest was checked with the archive's."""
    found = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for name in PROGRAMS:
                member = tar.getmember(release.member(name))
                file = tar.extractfile(member)
                if file is None or not 0 < member.size <= _LIMIT_BYTES:
                    raise DataDamaged(f"{member.name} in {release.url} is no program")
                found[name] = file.read()
    except (KeyError, OSError, tarfile.TarError, EOFError) as exc:
        raise DataDamaged(f"{release.url} is not the archive that is wanted: {exc}") from exc
    return found
