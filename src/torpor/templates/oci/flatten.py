"""An image's layers as one tar with a root file system."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from torpor.base.fsio import remove_tree
from torpor.errors import InvalidRequest
from torpor.templates.oci.image import Image, look_in
from torpor.templates.oci.layers import IMAGE_MOST_BYTES, unpack_layers
from torpor.templates.oci.source import Source, open_source, wrong
from torpor.templates.oci.tree import CAPABILITY, ENTRIES_MOST, BadEntryError, Inode, Tree


def flatten(
    image: Path,
    identity: str,
    work: Path,
    *,
    most_bytes: int = IMAGE_MOST_BYTES,
    check: Callable[[], None] = lambda: None,
) -> tuple[Path, str]:
    """Write the root file system of an image to `work/rootfs.tar`; return that, and what to tell of it. Blocks.

    `work` is there; on success nothing but the tar is added to it.

    Args:
        image: a layout folder, a layout as a tar, or what `docker save` writes.
        identity: `Settings.identity` of the image when the build was planned.
        work: a folder with room for the image twice.
        most_bytes: limit of all its layers together.
        check: called often; what it raises ends the work, and nothing of it is left.

    Raises:
        InvalidRequest: the image is damaged, hostile, or another one than was planned.
        LimitExceeded: it is larger than an image may be.
        InsufficientResources: the disk has no room for it.
        HostNotReady: nothing here can read its compression.
    """
    folder, target = work / "layers", work / "rootfs.tar"
    source = open_source(image)
    try:
        folder.mkdir()
        found = _as_planned(source, identity)
        paths = unpack_layers(source, found, folder, most_bytes=most_bytes, check=check)
        tree = _grown(source, paths)
        check()
        _write(tree, paths, target, check)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        source.close()
        remove_tree(folder)
    note = f"{len(paths)} layers"
    return target, f"{note}; {tree.skipped} device files are left out" if tree.skipped else note


def _as_planned(source: Source, identity: str) -> Image:
    found = look_in(source)
    if found.settings.identity() != identity:
        raise wrong(source, "has changed since the build began", hint="build it again")
    return found


def _grown(source: Source, paths: list[Path]) -> Tree:
    tree = Tree()
    for number, path in enumerate(paths):
        try:
            tree.add_layer(number, _members(path))
        except BadEntryError as exc:
            raise InvalidRequest(
                f"the image {source.path} has layer {number + 1}, in which {exc}",
                hint="build it again where it was made",
                path=source.path,
            ) from exc
        except (tarfile.TarError, ValueError, OverflowError, EOFError) as exc:
            raise wrong(source, f"has layer {number + 1}, which is no tar: {exc}") from exc
    return tree


def _members(path: Path) -> list[tarfile.TarInfo]:
    if path.stat().st_size == 0:
        return []
    members = []
    with tarfile.open(path, "r:") as tar:
        while (member := tar.next()) is not None:
            if member.isreg() and member.sparse is None:
                _check_end(member, path)
            members.append(member)
            tar.members = []  # type: ignore[attr-defined]  # else it keeps every header a second time
            if len(members) > ENTRIES_MOST:
                raise BadEntryError(f"there are over {ENTRIES_MOST} entries")
    return members


def _check_end(member: tarfile.TarInfo, path: Path) -> None:
    if member.offset_data + member.size > path.stat().st_size:
        raise BadEntryError(f"{member.name[:200]!r} is longer than the layer")


def _write(tree: Tree, paths: list[Path], target: Path, check: Callable[[], None]) -> None:
    """Write the tree out; the data comes from the layers."""
    with contextlib.ExitStack() as stack:
        layers = [
            stack.enter_context(tarfile.open(path, "r:")) if path.stat().st_size else None
            for path in paths
        ]
        out = stack.enter_context(tarfile.open(target, "x", format=tarfile.PAX_FORMAT))
        for name, node in tree.walk():
            check()
            info = _header(name, node.inode)
            data: IO[bytes] | None = None
            layer = layers[node.inode.layer]
            if info.type == tarfile.REGTYPE and layer is not None:
                data = _data(layer, node.inode)
            out.addfile(info, data)
            out.members = []  # type: ignore[attr-defined]


def _header(name: str, inode: Inode) -> tarfile.TarInfo:
    """Return the header for a name; a second name of the same file is a hard link."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = inode.kind, inode.mode, int(inode.mtime)
    info.uid, info.gid = inode.uid, inode.gid
    if inode.kind != tarfile.DIRTYPE and inode.written_as is not None:
        info.type, info.linkname = tarfile.LNKTYPE, inode.written_as
        return info
    inode.written_as = name
    info.linkname, info.size = inode.target, inode.size
    if inode.capability is not None:
        info.pax_headers = {CAPABILITY: inode.capability}
    return info


def _data(layer: tarfile.TarFile, inode: Inode) -> IO[bytes]:
    """Return a file's data in its layer."""
    where = tarfile.TarInfo()
    where.size, where.offset_data = inode.size, inode.offset
    where.sparse = inode.sparse
    return cast("IO[bytes]", layer.extractfile(where))
