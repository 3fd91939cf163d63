"""The agent's start: arguments, its place in the system, and the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from torpor_guest import __version__, device, protocol
from torpor_guest.cgroups import Cgroups
from torpor_guest.execs import Execs
from torpor_guest.freezer import Freezer
from torpor_guest.gate import DISK, HeldLog
from torpor_guest.inventories import InventoryMethods
from torpor_guest.kernel import Kernel
from torpor_guest.launcher import Launcher
from torpor_guest.memory import SOCKET, MemorySocket
from torpor_guest.methods import table
from torpor_guest.programs import Programs
from torpor_guest.quiesce import Quiesce
from torpor_guest.renewal import Renewals
from torpor_guest.sandboxfile import SANDBOX_FILE, SandboxFile
from torpor_guest.session import Session
from torpor_guest.snapshots import SnapshotMethods
from torpor_guest.stillness import Stillness
from torpor_guest.system import System
from torpor_guest.threads import POOL
from torpor_guest.users import IMAGE_FILE, Image
from torpor_guest.volumes import VolumeMethods

STATE_DIR = "/var/lib/torpor"
RUN_DIR = "/run/torpor"
_NICE = -10

_log = logging.getLogger("torpor")


def main(kernel: Kernel | None = None) -> None:
    """Run the agent until it is told to stop; ends the process."""
    args = _parse(sys.argv[1:])
    protocol.MANY_ESCAPES = 0
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="torpor-agent: %(message)s")
    for handler in logging.getLogger().handlers:
        HeldLog(DISK, handler)
    sys.dont_write_bytecode = True  # an import must not write to a frozen disk
    status = 1
    try:
        status = asyncio.run(_run(args, kernel or Kernel()))
    except OSError as exc:
        _log.error("%s", exc)  # a full device or a busy port needs no traceback
    logging.shutdown()
    os._exit(status)  # threads at work on a stuck disk do not hold us up


@dataclass
class Options:
    """Where the agent works; the defaults are a guest's."""

    socket: Path | None = None
    fd: int | None = None
    state_dir: Path = Path(STATE_DIR)
    image: Path = Path(IMAGE_FILE)
    sandbox: Path = Path(SANDBOX_FILE)
    cgroup: str = "auto"
    proc_sys: Path = Path("/proc/sys")


def _parse(arguments: list[str]) -> Options:
    if not arguments:  # as in a guest: argparse is not worth its import then
        return Options()
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="torpor_guest", description="Torpor's agent in the guest")
    parser.add_argument("--socket", type=Path, help="serve this Unix socket, not the port")
    parser.add_argument("--fd", type=int, help="serve this connected socket, not the port")
    parser.add_argument("--state-dir", type=Path, default=Options.state_dir)
    parser.add_argument("--image", type=Path, default=Options.image)
    parser.add_argument("--sandbox", type=Path, default=Options.sandbox)
    parser.add_argument(
        "--cgroup", default=Options.cgroup, help="auto, none, or a cgroup v2 folder that is ours"
    )
    parser.add_argument("--proc-sys", type=Path, default=Options.proc_sys)
    return Options(**vars(parser.parse_args(arguments)))


async def _run(args: Options, kernel: Kernel) -> int:
    freezer = Freezer(kernel, DISK)
    freezer.recover()
    cgroups = Cgroups.open(args.cgroup)
    _go_first()
    launcher = Launcher(cgroups)
    launcher.start()
    _raise_file_limit()  # after the spawner has started: commands keep the usual one
    _make_run_dir(kernel)
    for folder in (args.state_dir, args.state_dir / "exec"):
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    image = _image(args.image)
    execs = Execs(args.state_dir / "exec", launcher, image, SandboxFile(args.sandbox), POOL)
    lost = execs.restore()
    programs = Programs(launcher)
    quiesce = Quiesce(kernel, freezer, launcher, args.state_dir)
    quiesce.recover()
    memory = MemorySocket(kernel.path(SOCKET))
    await memory.start()
    stillness = Stillness(kernel, programs)
    renewals = Renewals(kernel, freezer, programs, quiesce, stillness)
    session = Session(
        table(
            execs,
            System(programs, kernel, args.proc_sys),
            SnapshotMethods(freezer, renewals, quiesce, stillness),
            InventoryMethods(launcher, args.state_dir, str(kernel.root).rstrip("/")),
            VolumeMethods(kernel, programs, image),
            memory,
        )
    )
    if args.fd is not None:
        serving = device.serve_fd(args.fd, session, session.attach)
    elif args.socket:
        serving = device.serve_socket(args.socket, session, session.attach)
    else:
        serving = device.serve_host(session, session.attach)
    _log.info(
        "version %s, pid %d, commands %s, %d lost",
        __version__,
        os.getpid(),
        "in cgroups" if cgroups.parent else "in sessions",
        lost,
    )
    task = asyncio.get_running_loop().create_task(serving)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return 0
    finally:
        freezer.close()
        await memory.aclose()
        await quiesce.let_go("lost")
        execs.kill_all()
        launcher.close()
        if args.socket:
            with contextlib.suppress(OSError):
                args.socket.unlink()
    return 0


def _image(path: Path) -> Image:
    try:
        return Image.load(path)
    except (OSError, ValueError) as exc:
        _log.error("the image's defaults are not used: %s", exc)
        return Image()


def _make_run_dir(kernel: Kernel) -> None:
    try:
        kernel.path(RUN_DIR).mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as exc:  # not root: then there is no freezing and no renewal either
        _log.error("%s", exc)


def _go_first() -> None:
    """Be served before others on the CPU: the host waits for us, most of all when the machine has just come back
    and everything in it wakes up at once. Commands have the usual priority (see `spawner`)."""
    with contextlib.suppress(OSError):  # not root
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    # where the kernel shares the CPU among sessions, the above counts within ours only
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE))


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
