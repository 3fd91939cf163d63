"""What differs between the disks of two snapshots, as their machines see them: files and packages.

Both are restored as throw-away sandboxes without a network, looked at side by side, and deleted. What is looked
at is the root file system, without the volumes that are attached to it: path, kind, size, mode, owner, link target; the content (SHA-256) only of files of equal
size whose time differs. Running programs go on in the two machines meanwhile, so what they write by themselves
shows too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torpor.errors import InvalidRequest, TorporError
from torpor.model import FileInfo, SnapshotId
from torpor.sdk.client import Client
from torpor.sdk.temporary import Temporary

if TYPE_CHECKING:
    from torpor.sdk.sandbox import AsyncSandbox

SKIP = ("/proc", "/sys", "/dev", "/run", "/tmp")  # noqa: S108 - names in the guest
"""What is not looked at unless the caller says otherwise."""
ALWAYS_SKIP = (
    "/etc/hostname",
    "/etc/hosts",
    "/etc/machine-id",
    "/etc/ssh/ssh_host_*",
    "/etc/torpor/sandbox.json",
    "/var/lib/dbus/machine-id",
    "/var/lib/systemd/random-seed",
    "/var/lib/torpor",
    "/var/log/journal",
)
"""What is made anew in every restored machine, so that it tells nothing."""
TTL_SECONDS = 3600
_HASHED_AT_ONCE = 2000
_HASHES_LIMIT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A path that is in both, and differs."""

    path: str
    what: tuple[str, ...]
    """Of `kind`, `content`, `mode`, `owner`, `target`."""
    before: FileInfo
    after: FileInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """A Debian package that is not the same in both."""

    name: str
    before: str | None
    """Its version; None: it is not installed."""
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDiff:
    """What differs between two snapshots; all lists are sorted."""

    before: SnapshotId
    after: SnapshotId
    added: tuple[FileInfo, ...]
    removed: tuple[FileInfo, ...]
    changed: tuple[FileChange, ...]
    packages: tuple[PackageChange, ...] | None
    """None: one of them has no `dpkg-query`."""
    skipped: tuple[str, ...]
    """What was not looked at."""
    volumes: tuple[str, ...] = ()
    """Where one of them has a volume, which is no part of its disk and was not looked at either."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing that was looked at differs."""
        return not (self.added or self.removed or self.changed or self.packages)


@dataclass(frozen=True, slots=True)
class _Machine:
    """What one of the two holds."""

    sandbox: AsyncSandbox
    files: Mapping[str, FileInfo]
    packages: Mapping[str, str] | None


async def diff(
    before: SnapshotId, after: SnapshotId, client: Client, *, skip: Sequence[str], allow_cold: bool
) -> SnapshotDiff:
    """Return what differs between two snapshots; the two machines made for it are deleted however it ends."""
    volumes = await _volumes((before, after), client)
    async with Temporary() as temporary:
        made = await temporary.make(_restore(before, after, client, allow_cold=allow_cold))
        for result in made:
            if isinstance(result, TorporError):
                raise result
        left, right = await asyncio.gather(
            *(
                _look(found, (*skip, *volumes))
                for found in made
                if not isinstance(found, TorporError)
            )
        )
        return replace(await _compare(before, after, left, right, skip), volumes=volumes)


async def _volumes(snapshot_ids: Sequence[SnapshotId], client: Client) -> tuple[str, ...]:
    """Return the paths at which the machines of these snapshots have volumes."""
    from torpor.sdk.snapshots import AsyncSnapshot

    found = [await AsyncSnapshot.get(snapshot_id, client=client) for snapshot_id in snapshot_ids]
    return tuple(sorted({path for snapshot in found for path in snapshot.info.volumes}))


async def _restore(
    before: SnapshotId, after: SnapshotId, client: Client, *, allow_cold: bool
) -> list[AsyncSandbox | TorporError]:
    from torpor.sdk.sandbox import AsyncSandbox

    async def one(snapshot_id: SnapshotId) -> AsyncSandbox | TorporError:
        try:
            return await AsyncSandbox.restore(
                snapshot_id,
                metadata={"made-by": "torpor diff"},
                network="none",
                ttl_seconds=TTL_SECONDS,
                allow_cold=allow_cold,
                client=client,
            )
        except TorporError as error:
            return error

    return list(await asyncio.gather(one(before), one(after)))


async def _look(sandbox: AsyncSandbox, skip: Sequence[str]) -> _Machine:
    wanted = Skipping((*skip, *ALWAYS_SKIP))
    files: dict[str, FileInfo] = {}
    for top in await sandbox.filesystem.list("/"):
        if wanted.skips(top.path):
            continue
        files[top.path] = top
        if top.kind != "dir":
            continue
        async with aclosing(sandbox.filesystem.walk(top.path)) as below:
            async for info in below:
                if not wanted.skips(info.path):
                    files[info.path] = info
    return _Machine(sandbox, files, await _packages(sandbox))


class Skipping:
    """Paths that are not looked at: with all below them, or, with `*` at their end, all that begin so."""

    def __init__(self, paths: Collection[str]) -> None:
        self._exact = frozenset(path.rstrip("/") for path in paths)
        self._begin = tuple(
            path.removesuffix("*") if path.endswith("*") else f"{path.rstrip('/')}/"
            for path in paths
        )

    def skips(self, path: str) -> bool:
        """Return whether a path is one of them."""
        return path in self._exact or path.startswith(self._begin)


async def _packages(sandbox: AsyncSandbox) -> dict[str, str] | None:
    query = ["dpkg-query", "-W", "-f", r"${binary:Package}\t${Version}\t${db:Status-Status}\n"]
    try:
        result = await sandbox.exec(query, output_limit_bytes=_HASHES_LIMIT_BYTES)
    except InvalidRequest:
        return None  # there is no such program
    if not result.ok or result.stdout_truncated:
        return None
    rows = (line.split("\t") for line in result.stdout.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


async def _compare(
    before: SnapshotId, after: SnapshotId, left: _Machine, right: _Machine, skip: Sequence[str]
) -> SnapshotDiff:
    both = sorted(left.files.keys() & right.files.keys())
    doubtful = [path for path in both if _is_doubtful(left.files[path], right.files[path])]
    hashes = await asyncio.gather(_hashes(left.sandbox, doubtful), _hashes(right.sandbox, doubtful))
    differs = {path for path in doubtful if hashes[0].get(path, "-") != hashes[1].get(path, "+")}
    changes = (
        FileChange(path=path, what=what, before=left.files[path], after=right.files[path])
        for path in both
        if (what := _what(left.files[path], right.files[path], path in differs))
    )
    return SnapshotDiff(
        before=before,
        after=after,
        added=_only_in(right.files, left.files),
        removed=_only_in(left.files, right.files),
        changed=tuple(changes),
        packages=_package_changes(left.packages, right.packages),
        skipped=tuple(sorted({*skip, *ALWAYS_SKIP})),
    )


def _only_in(these: Mapping[str, FileInfo], those: Mapping[str, FileInfo]) -> tuple[FileInfo, ...]:
    return tuple(these[path] for path in sorted(these.keys() - those.keys()))


def _is_doubtful(before: FileInfo, after: FileInfo) -> bool:
    """Return whether only reading tells if the content is the same."""
    return (
        before.kind == after.kind == "file"
        and before.size_bytes == after.size_bytes
        and before.modified_at != after.modified_at
    )


def _what(before: FileInfo, after: FileInfo, content_differs: bool) -> tuple[str, ...]:
    if before.kind != after.kind:
        return ("kind",)
    is_file = before.kind == "file"
    is_link = before.kind == "symlink"
    found = (
        ("content", content_differs or (is_file and before.size_bytes != after.size_bytes)),
        ("mode", not is_link and before.mode != after.mode),
        ("owner", (before.user, before.group) != (after.user, after.group)),
        ("target", before.target != after.target),
    )
    return tuple(name for name, differs in found if differs)


async def _hashes(sandbox: AsyncSandbox, paths: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 of files; one that cannot be read has none."""
    found: dict[str, str] = {}
    for begin in range(0, len(paths), _HASHED_AT_ONCE):
        names = "\0".join(paths[begin : begin + _HASHED_AT_ONCE])
        result = await sandbox.exec(
            ["xargs", "-0", "sha256sum", "-z", "--"],
            stdin=names.encode("utf-8", "surrogateescape"),
            user="root",
            output_limit_bytes=_HASHES_LIMIT_BYTES,
        )
        for line in result.stdout_raw.split(b"\0"):
            digest, _, name = line.partition(b" ")
            if name:
                found[name[1:].decode("utf-8", "surrogateescape")] = digest.decode(
                    "ascii", "replace"
                )
    return found


def _package_changes(
    before: Mapping[str, str] | None, after: Mapping[str, str] | None
) -> tuple[PackageChange, ...] | None:
    if before is None or after is None:
        return None
    return tuple(
        PackageChange(name=name, before=before.get(name), after=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )
