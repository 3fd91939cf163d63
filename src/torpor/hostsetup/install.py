"""Fetching a Firecracker release and putting its programs in place, all of them or none."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import platform
import re
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from torpor.base.fsio import replacing
from torpor.base.proc import HostCommandFailed, run
from torpor.base.units import MIB, format_bytes
from torpor.errors import (
    Conflict,
    DataDamaged,
    HostNotReady,
    InsufficientResources,
    LimitExceeded,
    NotAllowed,
    OperationTimeout,
)
from torpor.hostsetup.release import PINNED, Release
from torpor.layers.space import is_full
from torpor.vmm.firecracker import host

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
        Conflict: another version is there and `force` is off, or a folder is; nothing was changed.
        NotAllowed: the folder is not ours to write.
        DataDamaged: what was fetched is not the release; nothing was changed.
        LimitExceeded, OperationTimeout: it is too large or takes too long.
        InsufficientResources: the disk is full; nothing was changed.
    """
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise HostNotReady(
            f"this host is {platform.system()} on {platform.machine()}; Linux on x86_64 is wanted"
        )
    folder = await asyncio.to_thread(folder.absolute)  # a bare name would be looked for on PATH
    targets = tuple(folder / name for name in PROGRAMS)
    files = await asyncio.to_thread(_there, targets)
    there = {path.name: await version_of(path, path.name) for path in files}
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
    archive = await _fetch(release)
    programs = await asyncio.to_thread(_unpack, release, archive)
    await asyncio.to_thread(_put, folder, programs)
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
        HostNotReady: it is missing, does not run here, or is too old.
    """
    if place := shutil.which(program):
        program = await asyncio.to_thread(Path(place).absolute)
    found = await version_of(program)
    if found is None:
        raise HostNotReady(
            f"TORPOR_FIRECRACKER names {program}, which does not say that it is a Firecracker",
            hint=f"try: {program} --version  or unset TORPOR_FIRECRACKER to have one installed",
        )
    if tuple(int(part) for part in found.split(".")[:2]) < host.MINIMUM:
        least = ".".join(map(str, host.MINIMUM))
        raise HostNotReady(
            f"TORPOR_FIRECRACKER names {program}, which is version {found}; {least} or newer is wanted",
            hint="let it name another, or unset it to have one installed",
        )
    return Installed(found, (program,), changed=False)


def why_unused(program: Path) -> str | None:
    """Return why a daemon would not use this Firecracker, in words; None: it is the one that is found."""
    try:
        found = host.find_binary()
    except HostNotReady:
        found = None
    if found is not None and found.resolve() == program.resolve():
        return None
    if named := os.environ.get("TORPOR_FIRECRACKER"):
        return f"TORPOR_FIRECRACKER names {named}"
    return f"{found} is found before it" if found else f"{program.parent} is not on PATH"


async def version_of(program: Path, name: str = "firecracker") -> str | None:
    """Return the version that the program says it is; None when it does not say that it is a `name`."""
    try:
        done = await run([str(program), "--version"], timeout_s=20)
    except (OSError, HostCommandFailed, OperationTimeout):
        return None
    said = done.stdout.decode("utf-8", "replace")
    found = re.search(rf"^{name.capitalize()} v(\d+\.\d+\.\d+)", said, re.MULTILINE)
    return found[1] if found else None


def _there(targets: Sequence[Path]) -> list[Path]:
    """Return those of `targets` that exist. Raises `Conflict` when one is a folder."""
    for path in targets:
        try:
            if path.is_dir():
                raise Conflict(
                    f"{path} is a folder, and a program is wanted there; it was not touched",
                    hint="move it away, or give another folder: --into DIR",
                )
        except OSError as exc:
            raise NotAllowed(f"{path} cannot be looked at: {exc.strerror}", hint=_AS_ROOT) from exc
    return [path for path in targets if path.exists()]


def _check_writable(folder: Path) -> None:
    """Raise `NotAllowed` unless programs can be put there; nothing is made yet."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise NotAllowed(f"{there} is no folder that is ours to write", hint=_AS_ROOT)


_AS_ROOT = "run it as root, or give a folder of yours: --into DIR"


_NOT_FETCHED = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ImportError)
"""The last four come of what the environment says of proxies and certificates."""


async def _fetch(release: Release) -> bytes:
    data = bytearray()
    try:
        async with (
            asyncio.timeout(_DOWNLOAD_S),
            httpx.AsyncClient(follow_redirects=True, timeout=_STALLED_S) as client,
            client.stream("GET", release.url) as response,
        ):
            response.raise_for_status()
            async for piece in response.aiter_raw():
                data += piece
                if len(data) > _LIMIT_BYTES:
                    raise LimitExceeded(
                        f"{release.url} is over {format_bytes(_LIMIT_BYTES)}; nothing was installed"
                    )
    except TimeoutError as exc:
        raise OperationTimeout(f"{release.url} took longer than {_DOWNLOAD_S:g} s") from exc
    except _NOT_FETCHED as exc:
        raise HostNotReady(
            f"{release.url} cannot be fetched: {str(exc) or type(exc).__name__}",
            hint="on a host without internet, copy a Firecracker there and let TORPOR_FIRECRACKER name it",
        ) from exc
    digest = hashlib.sha256(data).hexdigest()
    if digest != release.sha256:
        raise DataDamaged(
            f"{release.url} has the SHA-256 {digest}; {release.sha256} is wanted; "
            "nothing was installed",
            hint="something between here and there changes it; try again from another network",
        )
    return bytes(data)


def _unpack(release: Release, archive: bytes) -> dict[str, bytes]:
    """Return the programs' bytes; their digest was checked with the archive's."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for name in PROGRAMS:
                member = tar.getmember(release.member(name))
                file = tar.extractfile(member)
                if file is None or not 0 < member.size <= _LIMIT_BYTES:
                    raise DataDamaged(f"{member.name} in {release.url} is no program")
                found[name] = file.read()
    except (KeyError, OSError, tarfile.TarError, EOFError) as exc:
        raise DataDamaged(f"{release.url} is not the archive that is wanted: {exc}") from exc
    return found


def _put(folder: Path, programs: Mapping[str, bytes]) -> None:
    """Put the programs into `folder`; all are on the disk before the first has its name."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            for name in reversed(PROGRAMS):  # what came last is named first
                file = stack.enter_context(replacing(folder / name, mode=0o755))
                file.write(programs[name])
                file.flush()
                os.fsync(file.fileno())
    except OSError as exc:
        if is_full(exc):
            raise InsufficientResources(
                f"{folder} has no room for {' and '.join(PROGRAMS)}; nothing was installed",
                hint="free disk space, or give another folder: --into DIR",
            ) from exc
        raise NotAllowed(f"{folder} cannot be written: {exc.strerror}", hint=_AS_ROOT) from exc
