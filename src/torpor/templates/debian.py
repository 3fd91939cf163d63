"""The real bootstrapper: mmdebstrap for the tree, mke2fs for the disk, an initrd of our own."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from torpor.base import proc
from torpor.base.aio import finish
from torpor.errors import (
    BuildFailed,
    HostNotReady,
    InsufficientResources,
    InvalidRequest,
    OperationTimeout,
    TorporError,
)
from torpor.templates import initrd, namespace
from torpor.templates.plan import BuildPlan, Step, find_keyring
from torpor.templates.progress import PackagesProgress

INSIDE = Path(__file__).parent / "inside.py"
TOOLS = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "unshare": "util-linux"}
"""Programs a build runs, and the packages they come in."""

_NEEDED = (
    ("a kernel", "linux-image-cloud-amd64", r"linux-image-.+"),
    ("an init", "systemd-sysv", r"systemd-sysv"),
    ("the guest agent's Python", "python3", r"python3(\.\d+)?"),
)
"""What no machine boots, or answers, without: in words, the usual package, and which packages will do."""
_LEFT_OUT = (
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/lintian/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
    # the kernel boots with our own initrd; initramfs-tools would spend half a minute on another
    "/etc/kernel/postinst.d/initramfs-tools",
)
_KEPT = ("/usr/share/doc/*/copyright", "/usr/share/locale/locale.alias")
_TIMEOUT_S = 3600.0
_STEP_LINE = re.compile(r"torpor: (\w+) (\d+) (\d+) (.*)")
_NO_PACKAGE = re.compile(r"E: (?:Unable to locate package |Package '|Version '\S+' for ')([^\s']+)")


async def bootstrap(plan: BuildPlan, work: Path, out: Path) -> AsyncGenerator[Step, None]:
    """Make `disk.raw`, `vmlinuz` and `initrd` in `out`; see `Bootstrapper` for what holds and is raised."""
    check_packages(plan)
    busybox = await asyncio.to_thread(_check_tools)
    await namespace.check()
    root = work / "root"
    plan_file = work / "plan.json"
    await asyncio.to_thread(plan_file.write_text, json.dumps(plan.for_inside()))
    inside = [python(), str(INSIDE)]
    hook = " ".join(f"'{part}'" for part in (*inside, "customize", str(plan_file))) + ' "$1"'
    try:
        async with aclosing(_mmdebstrap(plan, work, root, hook)) as steps:
            async for step in steps:
                yield step
        yield Step("image", "tidying up", 0.0)
        await asyncio.to_thread(_take_kernel, root, busybox, out)
        argv = [*inside, "image", str(plan_file), str(root), str(out / "disk.raw")]
        async with aclosing(lines("image", argv, work)) as said:
            async for line in said:
                if (found := parse(line)) is not None:
                    yield found
    finally:
        await finish(namespace.remove_image_tree(root), within_s=300)
    yield Step("image", "the disk is written", 1.0)


def check_packages(plan: BuildPlan) -> None:
    """Raise `InvalidRequest` when what no machine boots without is not among the packages."""
    names = [re.split(r"[:=/]", package)[0] for package in plan.packages()]
    missing = [
        f"{what} ({shown})"
        for what, shown, pattern in _NEEDED
        if not any(re.fullmatch(pattern, name) for name in names)
    ]
    if missing:
        raise InvalidRequest(
            f"recipe {plan.recipe.name!r} has no package for: {', '.join(missing)}",
            hint='begin it with base = "base", whose packages have them all, or name them in `packages`',
            step="plan",
        )


def mmdebstrap_argv(plan: BuildPlan, root: Path, hook: str, keyring: Path) -> list[str]:
    """Return the command that makes the tree at `root`."""
    return [
        "mmdebstrap",
        "--verbose",
        "--mode=root",
        "--format=directory",
        "--variant=minbase",
        *([f"--include={','.join(plan.packages())}"] if plan.packages() else []),
        *(f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT),
        *(f"--dpkgopt=path-include={path}" for path in _KEPT),
        "--dpkgopt=force-unsafe-io",  # a build that a crash interrupts is thrown away as a whole
        f"--customize-hook={hook}",
        plan.recipe.suite,
        str(root),
        *plan.mirror.lines(plan.recipe.suite, keyring),
    ]


async def _mmdebstrap(
    plan: BuildPlan, work: Path, root: Path, hook: str
) -> AsyncGenerator[Step, None]:
    progress = PackagesProgress()
    argv = mmdebstrap_argv(plan, root, hook, find_keyring())
    yield Step("packages", f"reading package lists from {plan.mirror.shown}", 0.0)
    async with aclosing(lines("packages", argv, work)) as said:
        async for line in said:
            if (found := parse(line)) is not None:
                yield found
            elif progress.feed(line):
                yield Step("packages", progress.message, progress.share)


def parse(line: str) -> Step | None:
    """Return how far `inside.py` says it is; None: it says something else."""
    found = _STEP_LINE.fullmatch(line)
    if found is None:
        return None
    step, done, total, message = found.groups()
    return Step(step, message, min(1.0, int(done) / max(1, int(total))))


async def lines(step: str, argv: Sequence[str], work: Path) -> AsyncGenerator[str, None]:
    """Run `argv` in namespaces and yield its lines; a failure becomes the error that fits its log."""
    tail: deque[str] = deque(maxlen=60)
    env = proc.safe_env({"TMPDIR": str(work), "LC_ALL": "C.UTF-8", **await _apt_proxy()})
    try:
        said = proc.stream_lines(namespace.wrapped(argv), timeout_s=_TIMEOUT_S, env=env)
        async with aclosing(said):
            async for line in said:
                tail.append(line)
                yield line
    except (proc.HostCommandFailed, OperationTimeout) as exc:
        raise explain(step, list(tail), exc.message) from exc


def explain(step: str, tail: list[str], message: str) -> TorporError:
    """Return the error for a failed step whose log ended with `tail`."""
    log = "\n".join(tail)
    if "No space left on device" in log or "disk quota exceeded" in log.lower():
        return InsufficientResources("the disk is full; the build was undone", step=step)
    if "Could not allocate block in ext2 filesystem" in log:
        return InvalidRequest(
            "the image does not fit on its disk",
            hint="give the recipe a larger disk_gib",
            step=step,
        )
    if found := _NO_PACKAGE.search(log):
        return InvalidRequest(
            f"Debian has no package {found.group(1)!r} as the recipe's `packages` names it",
            hint=f"search with: apt-cache search {found.group(1)}",
            step=step,
        )
    if "NO_PUBKEY" in log or "is not signed" in log or "Missing key" in log:
        return HostNotReady(
            "the host's Debian keys are too old to check this suite's signature",
            hint="run: sudo apt-get install --only-upgrade debian-archive-keyring  (0.2025.1 or newer, "
            "or 2023.3+deb12u2, has the keys of Debian 13)",
            step=step,
            log=log,
        )
    mistakes = [line for line in tail if line.startswith(("E: ", "Err:", "W: Failed"))]
    for line in tail:
        if line.startswith("run step "):
            return BuildFailed(f"the recipe's {line}", step="run", log=log)
    reason = (mistakes or [line for line in tail if line.strip()][-1:] or [message])[0]
    hint = None
    if re.search(r"Could not (resolve|connect)|Failed to fetch|Temporary failure", log):
        hint = "is the mirror reachable? TORPOR_DEBIAN_MIRROR names another"
    return BuildFailed(f"step {step} failed: {reason}", hint=hint, step=step, log=log)


def _check_tools() -> Path:
    """Return busybox once every program is there; raise `HostNotReady` with what to install."""
    missing = sorted({package for tool, package in TOOLS.items() if find_tool(tool) is None})
    if missing:
        raise HostNotReady(
            f"missing for template builds: {', '.join(missing)}",
            hint=f"run: sudo apt-get install {' '.join(missing)}",
        )
    return initrd.find_busybox()


def find_tool(name: str) -> str | None:
    """Return the path of a program, also one in the sbin folders that users' PATH lacks."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def python() -> str:
    """Return the Python that runs `inside.py`."""
    return sys.executable or "/usr/bin/python3"


async def _apt_proxy() -> dict[str, str]:
    """Return the proxies of the host's apt as the environment that apt reads in a build."""
    apt_config = find_tool("apt-config")
    if apt_config is None:
        return {}
    names = {"http_proxy": "Acquire::http::Proxy", "https_proxy": "Acquire::https::Proxy"}
    argv = [apt_config, "shell", *(word for pair in names.items() for word in pair)]
    done = await proc.run(argv, timeout_s=20, check=False)
    found = re.findall(r"^(https?_proxy)='([^']+)'$", done.stdout.decode(), re.MULTILINE)
    return {name: value for name, value in found if value != "DIRECT"}


def _take_kernel(root: Path, busybox: Path, out: Path) -> None:
    """Copy the kernel out of the tree and make the initrd for it."""
    kernels = sorted((root / "boot").glob("vmlinuz-*"))
    if not kernels:
        raise BuildFailed(
            "the image has no kernel", hint="add linux-image-cloud-amd64 to packages", step="image"
        )
    kernel = kernels[-1]
    modules = root / "usr/lib/modules" / kernel.name.removeprefix("vmlinuz-")
    shutil.copyfile(kernel, out / "vmlinuz")
    (out / "initrd").write_bytes(initrd.build(modules, busybox))
