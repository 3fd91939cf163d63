"""The bootstrapper for recipes with a `rootfs` or an `image`: the tree comes from elsewhere, kernel and initrd from another template.

The tar may be anybody's: nothing of it is run here, in the build; its first program runs in its own machine.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import shutil
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from torpor.base.aio import finish
from torpor.errors import BuildFailed, HostNotReady, InvalidRequest, TorporError
from torpor.templates import debian, initrd, manifest, namespace
from torpor.templates.oci import registry
from torpor.templates.oci.flatten import flatten
from torpor.templates.plan import BuildPlan, Step

INSIDE = Path(__file__).parent / "inside_rootfs.py"
FILES = Path(__file__).parent / "image_rootfs"
"""What takes the place of an init: `init`, and programs for the agent that small images lack."""

INIT = "/opt/torpor/init"

_MISSING = re.compile(r"^torpor missing: (.*)$", re.MULTILINE)


async def bootstrap(plan: BuildPlan, work: Path, out: Path) -> AsyncGenerator[Step, None]:
    """Make `disk.raw`, `vmlinuz` and `initrd` in `out`; see `Bootstrapper` for what holds and is raised.

    Raises also:
        InvalidRequest: the tar is none, or lacks what a machine needs; the message says what.
    """
    busybox = await asyncio.to_thread(_check_tools)
    await namespace.check()
    kernel = plan.kernel
    if kernel is None:
        raise BuildFailed("no template has a kernel for it", hint="torpor template build base")
    closed = work / "closed"
    root = closed / "root"
    await asyncio.to_thread(_make_folders, closed, root)
    plan_file = work / "plan.json"
    told = plan.for_inside() | {"busybox": str(busybox), "rootfs_files": str(FILES)}
    await asyncio.to_thread(plan_file.write_text, json.dumps(told))
    disk = out / manifest.DISK
    await asyncio.to_thread(_make_sparse, disk, plan.disk_bytes)
    tar = plan.recipe.rootfs
    if plan.recipe.image is not None:
        said = "fetching the image" if isinstance(plan.recipe.image, str) else "reading the layers"
        yield Step("unpack", said, 0.0)
        tar, note = await _flattened(plan, work)
        yield Step("unpack", note, 0.5)
    commands = (
        ("unpack", _tar(tar, root)),
        ("files", [debian.python(), str(INSIDE), str(plan_file), str(root)]),
        ("image", _mke2fs(root, disk)),
    )
    try:
        for step, argv in commands:
            yield Step(step, _SAID[step], 0.0)
            async with aclosing(debian.lines(step, argv, work)) as lines:
                try:
                    async for line in lines:
                        if (found := debian.parse(line)) is not None:
                            yield found
                except TorporError as error:
                    raise _explain(step, plan, error) from error
            if step == "unpack" and tar != plan.recipe.rootfs and tar is not None:
                await asyncio.to_thread(tar.unlink)
        for name in (manifest.KERNEL, manifest.INITRD):
            await asyncio.to_thread(shutil.copyfile, kernel / name, out / name)
    finally:
        await finish(namespace.remove_image_tree(closed), within_s=300)
    yield Step("image", "the disk is written", 1.0)


_SAID = {
    "unpack": "unpacking the root file system",
    "files": "looking at what it has",
    "image": "writing the file system",
}


async def _flattened(plan: BuildPlan, work: Path) -> tuple[Path, str]:
    """Return a tar in `work` with the root file system of the plan's container image, and what to tell of it."""
    recipe = plan.recipe
    assert recipe.image is not None
    is_far = isinstance(recipe.image, str)
    image = await registry.pull(str(recipe.image), work) if is_far else Path(recipe.image)
    is_stopped = threading.Event()

    def check() -> None:
        if is_stopped.is_set():
            raise BuildFailed("the build was stopped", step="unpack")

    call = functools.partial(flatten, image, recipe.image_identity, work, check=check)
    thread = asyncio.get_running_loop().run_in_executor(None, call)

    async def ended() -> None:
        await asyncio.wait([thread])
        thread.exception()

    try:
        return await asyncio.shield(thread)
    finally:
        is_stopped.set()
        await finish(ended(), within_s=300)


def _tar(tar: Path | None, root: Path) -> list[str]:
    """Return the command that unpacks the tar, compressed or not; GNU tar keeps every name below `root`."""
    return [
        "tar", "--extract", f"--file={tar}", f"--directory={root}",
        "--numeric-owner", "--preserve-permissions", "--xattrs", "--xattrs-include=security.capability",
        "--exclude=./dev/*", "--exclude=dev/*", "--no-wildcards-match-slash", "--delay-directory-restore",
    ]  # fmt: skip


def _mke2fs(root: Path, disk: Path) -> list[str]:
    """Return the command that writes the tree to `disk` as ext4; it follows no symlink of the tree."""
    argv = [debian.find_tool("mke2fs") or "mke2fs", "-q", "-F", "-t", "ext4", "-L", "torpor"]
    # the file is new, so it reads as zeros: the guest need not write its inode tables once more
    return [
        *argv, "-m", "1", "-d", str(root), "-J", "size=32",
        "-E", "assume_storage_prezeroed=1", str(disk),
    ]  # fmt: skip


def _make_sparse(path: Path, size: int) -> None:
    with path.open("xb") as file:
        file.truncate(size)


def _explain(step: str, plan: BuildPlan, error: TorporError) -> TorporError:
    """Return the error that says what is wrong with the tar, if that is the reason."""
    log = str(error.facts.get("log") or error.message)
    if found := _MISSING.search(log):
        return InvalidRequest(
            f"the root file system of {plan.recipe.name!r} lacks {found.group(1)}",
            hint="add it where the image is made, for example: apt-get install python3 dash; "
            "and give what docker save wrote with --image, not --rootfs",
            step=step,
        )
    if step == "unpack" and isinstance(error, BuildFailed):
        return InvalidRequest(
            f"the root file system of {plan.recipe.name!r} cannot be unpacked: {log.splitlines()[-1] if log else error.message}",
            hint="a tar is wanted, plain or compressed, as docker export writes it",
            step=step,
            log=log,
        )
    return error


def _check_tools() -> Path:
    missing = [
        package
        for tool, package in (("tar", "tar"), ("mke2fs", "e2fsprogs"), ("unshare", "util-linux"))
        if debian.find_tool(tool) is None
    ]
    if missing:
        raise HostNotReady(
            f"missing for template builds: {', '.join(missing)}",
            hint=f"run: sudo apt-get install {' '.join(missing)}",
        )
    return initrd.find_busybox()


def _make_folders(closed: Path, root: Path) -> None:
    closed.mkdir(mode=0o700)  # what is set-uid in the tree is for nobody on the host
    root.mkdir(mode=0o755)
