"""Runs as root in the build's own namespaces: makes a machine's image of a root file system from elsewhere.

Standard library only, and started by its path, as `inside.py`, whose parts it uses. One command:

    inside_rootfs.py PLAN ROOT      put Torpor's and the recipe's files into the tree at ROOT

Nothing of the tree is run here: it may be anybody's. What it lacks is told in a line
`torpor missing: WHAT`, and the status is 3.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

inside = importlib.import_module("inside")  # beside this file, which is where Python looks first

PYTHONS = tuple(
    f"{folder}/{name}"
    for folder in ("/usr/bin", "/usr/local/bin", "/bin", "/opt/python/bin")
    for name in ("python3", "python3.14", "python3.13", "python3.12", "python3.11")
)
OLDEST = (3, 11)
FOLDERS = ("/dev", "/proc", "/sys", "/run", "/tmp", "/var/lib", "/root")  # noqa: S108 - the image's
FORGOTTEN = (
    "etc/ssh/ssh_host_*",
    "var/lib/systemd/random-seed",
    "var/lib/dbus/machine-id",
    "root/.bash_history",
    "tmp/*",
)
_LIBRARY = ("asyncio/__init__.py", "ctypes/__init__.py", "json/__init__.py", "tarfile.py")
"""Parts of the library that small builds of Python leave out."""
_HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"


def customize(plan: Mapping[str, Any], root: Path) -> None:
    """Put everything into the tree at `root`."""
    inside.say("files", 0, 1, "copying the guest agent and files")
    make_way(root / inside.STAGE)
    inside.stage(plan, root / inside.STAGE)
    shutil.copy(plan["busybox"], root / inside.STAGE / "busybox")
    shutil.copytree(plan["rootfs_files"], root / inside.STAGE / "rootfs")
    os.chroot(root)
    os.chdir("/")
    check_tree()
    python = find_python()
    here = Path("/", inside.STAGE)
    install(plan, here, python)
    for number, item in enumerate(plan["files"]):
        inside.place(item, here / "files" / str(number))
    shutil.rmtree(here)
    tidy()
    inside.say("files", 1, 1, f"files are in place; the agent runs on {python}")


def make_way(path: Path) -> None:
    """Remove what the tree has at `path`: a symlink there would lead to the host's files."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def tidy() -> None:
    """Take out what no two machines may share, and what was left in /tmp; after the chroot."""
    for pattern in FORGOTTEN:
        for path in Path("/").glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    temporary = Path("/tmp")  # noqa: S108 - the image's
    if temporary.is_dir() and not temporary.is_symlink():
        temporary.chmod(0o1777)


def missing(what: str) -> NoReturn:
    """End, and say what the tree lacks."""
    sys.stdout.write(f"torpor missing: {what}\n")
    sys.stdout.flush()
    raise SystemExit(3)


def check_tree() -> None:
    """End unless a machine can be made of the tree."""
    if Path("/manifest.json").is_file() or Path("/oci-layout").is_file():
        missing("a root file system: the tar is an image with layers (docker save, OCI)")
    if not Path("/bin/sh").exists():
        missing("a shell (/bin/sh)")
    for table in ("/etc/passwd", "/etc/group"):
        if not Path(table).is_file():
            missing(table)


def find_python() -> str:
    """Return the tree's Python that the agent can run on; end when there is none."""
    seen = set()
    for name in PYTHONS:
        path = Path(name)
        if not path.exists():
            continue
        real = path.resolve()
        found = re.fullmatch(r"python(3)\.(\d+)", real.name)
        if found is None:
            continue
        version = (int(found[1]), int(found[2]))
        seen.add(f"{name} is Python {version[0]}.{version[1]}")
        library = real.parent.parent / "lib" / real.name
        if version >= OLDEST and all((library / part).is_file() for part in _LIBRARY):
            return name
        if version >= OLDEST:
            seen.add(f"the library of {name} is not whole")
    oldest = ".".join(map(str, OLDEST))
    missing(
        f"python3 ({oldest} or newer, with its whole library)"
        + "".join(f"; {s}" for s in sorted(seen))
    )


def install(plan: Mapping[str, Any], here: Path, python: str) -> None:
    """Install the guest agent with what starts it, and the machine's settings."""
    opt = Path("/opt/torpor")
    make_way(opt)
    for folder in ("bin", "sbin"):
        (opt / folder).mkdir(parents=True)
    shutil.copytree(here / "agent", opt / "torpor_guest")
    shutil.copy(here / "busybox", opt / "busybox")
    for name, target in (
        ("init", "init"),
        ("poweroff", "bin/poweroff"),
        ("resize2fs", "sbin/resize2fs"),
    ):
        text = (here / "rootfs" / name).read_text("utf-8").replace("@PYTHON@", python)
        (opt / target).write_text(text, "utf-8")
    for path in (opt, *opt.rglob("*")):
        is_program = (
            path.is_dir() or path.parent.name in ("bin", "sbin") or path.name in ("init", "busybox")
        )
        path.chmod(0o755 if is_program else 0o644)
    library = Path(python).resolve()
    for packages in (
        library.parent.parent / "lib" / library.name / "site-packages",
        Path("/usr/lib/python3/dist-packages"),
    ):
        if packages.is_dir():
            write_link(packages / "torpor_memory.py", opt / "torpor_guest" / "memory_client.py")
    write("/etc/torpor/image.json", json.dumps(plan["image"], indent=1) + "\n")
    write("/etc/hostname", f"{plan['hostname']}\n")
    write("/etc/resolv.conf", "nameserver 10.0.2.3\n")
    if not Path("/etc/hosts").is_file() or not Path("/etc/hosts").stat().st_size:
        write("/etc/hosts", _HOSTS)
    write("/etc/machine-id", "")
    for folder in FOLDERS:
        Path(folder).mkdir(parents=True, exist_ok=True)
    make_cwd(plan)


def make_cwd(plan: Mapping[str, Any]) -> None:
    """Make the folder that commands start in, and see that the user is there whom they run as."""
    user, cwd = plan["default_user"], Path(plan["default_cwd"])
    rows = [line.split(":")[0] for line in Path("/etc/passwd").read_text().splitlines()]
    if user not in rows and not user.isdigit():  # a uid needs no row
        missing(f"the user {user!r} (in /etc/passwd)")
    if not cwd.exists():
        cwd.mkdir(parents=True)
        cwd.chmod(
            0o777
        )  # root and the image's users work side by side; the machine is the boundary


def write(name: str, text: str) -> None:
    """Write a file, in place of whatever is there."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o644)


def write_link(path: Path, target: Path) -> None:
    """Make a symlink, in place of whatever is there."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def main(argv: list[str]) -> None:
    """Do what the command line says."""
    os.umask(0o022)
    plan = json.loads(Path(argv[1]).read_text("utf-8"))
    try:
        customize(plan, Path(argv[2]))
    except (FileExistsError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
        missing(f"the usual folders: {exc.filename}: {exc.strerror}")


if __name__ == "__main__":
    main(sys.argv)
