"""Runs as root in the build's own namespaces: puts Torpor's and the recipe's files into the image.

Standard library only, and started by its path, so that it needs nothing but a Python. Two commands:

    inside.py customize PLAN ROOT   as mmdebstrap's hook: files, users, run steps
    inside.py image PLAN ROOT DISK  after it: tidy up and make the ext4 image

All that is written into the image is written after a chroot: a symlink in the image (`/var/run` is one)
can then never lead to the host's files. Progress goes to stdout as `torpor: STEP DONE TOTAL MESSAGE`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess  # noqa: TID251 - runs alone in the namespace, without torpor.base
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STAGE = ".torpor-stage"
"""Folder at the image's root that holds what is to be put into place; gone when `customize` ends."""

_MOVED_OUT = ("boot/vmlinuz*", "boot/initrd*", "boot/System.map*", "vmlinuz*", "initrd.img*")
_FORGOTTEN = (
    "etc/ssh/ssh_host_*",
    "var/lib/systemd/random-seed",
    "var/lib/dbus/machine-id",
    "var/log/*.log",
    "var/log/apt/*",
    "var/cache/ldconfig/aux-cache",
    "var/cache/debconf/*-old",
    "root/.bash_history",
)


def say(step: str, done: int, total: int, message: str) -> None:
    """Tell the builder how far `step` is."""
    sys.stdout.write(f"torpor: {step} {done} {total} {message}\n")
    sys.stdout.flush()


def customize(plan: Mapping[str, Any], root: Path) -> None:
    """Put everything into the image at `root` and run the recipe's steps in it."""
    say("files", 0, 1, "copying the guest agent and files")
    stage(plan, root / STAGE)
    os.chroot(root)
    os.chdir("/")
    here = Path("/", STAGE)
    make_users(plan)
    install_system(plan, here)
    for number, item in enumerate(plan["files"]):
        place(item, here / "files" / str(number))
    shutil.rmtree(here)
    say("files", 1, 1, "files are in place")
    run_steps(plan)
    finish(plan)


def stage(plan: Mapping[str, Any], target: Path) -> None:
    """Copy what comes from the host to `target`, before the chroot hides it."""
    (target / "files").mkdir(parents=True, mode=0o700)
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(plan["agent"], target / "agent", ignore=ignore)
    shutil.copytree(plan["system"], target / "system", ignore=ignore)
    for number, item in enumerate(plan["files"]):
        into = target / "files" / str(number)
        if item["source"] is None:
            into.write_text(item["content"], "utf-8")
            into.chmod(0o644)
        elif Path(item["source"]).is_dir():
            shutil.copytree(item["source"], into, symlinks=True)
        else:
            shutil.copy(item["source"], into)


def make_users(plan: Mapping[str, Any]) -> None:
    """Create the recipe's users, and the folder that commands start in."""
    known = _ids(Path("/etc/passwd"))
    for user in plan["users"]:
        if user["name"] not in known:
            command(
                ["useradd", "-m", "-U", "-u", str(user["uid"]), "-s", "/bin/bash", user["name"]]
            )
        if user["sudo"]:
            rule = Path("/etc/sudoers.d", f"90-{user['name']}")
            rule.parent.mkdir(mode=0o750, exist_ok=True)
            rule.write_text(f"{user['name']} ALL=(ALL:ALL) NOPASSWD: ALL\n")
            rule.chmod(0o440)
    cwd = Path(plan["default_cwd"])
    if not cwd.exists():
        cwd.mkdir(parents=True)
        owner(cwd, f"{plan['default_user']}:{plan['default_user']}")
        cwd.chmod(
            0o777
        )  # root and the image's users work side by side; the machine is the boundary


def install_system(plan: Mapping[str, Any], here: Path) -> None:
    """Install the guest agent, the network's unit and the system's settings; mask what serves no agent."""
    opt = Path("/opt/torpor")
    opt.mkdir(parents=True, exist_ok=True)
    shutil.copytree(here / "agent", opt / "torpor_guest", dirs_exist_ok=True)
    _open_to_all(opt)
    for source in sorted((here / "system").rglob("*")):
        target = Path("/") / source.relative_to(here / "system")
        if source.is_dir():
            target.mkdir(exist_ok=True)
            continue
        shutil.copyfile(source, target)
        is_program = target.parts[1:4] in (("usr", "lib", "torpor"), ("usr", "local", "bin"))
        target.chmod(0o755 if is_program else 0o644)
    for name in Path("/usr/lib/python3").glob("dist-packages"):  # for the system's own Python
        link = name / "torpor_memory.py"
        link.unlink(missing_ok=True)
        link.symlink_to(opt / "torpor_guest" / "memory_client.py")
    unit = opt / "torpor_guest" / "torpor-agent.service"
    shutil.copyfile(unit, Path("/etc/systemd/system/torpor-agent.service"))
    Path("/etc/torpor").mkdir(exist_ok=True)
    Path("/etc/torpor/image.json").write_text(json.dumps(plan["image"], indent=1) + "\n")
    for name in plan["masked"]:
        link = Path("/etc/systemd/system", name)
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    command(["systemctl", "enable", "-q", "torpor-agent.service", "torpor-network.service"])
    command(["systemctl", "set-default", "-q", "multi-user.target"])
    command(["python3", "-m", "compileall", "-q", str(opt)])
    kernels = [path.name for path in Path("/var/lib/dpkg/info").glob("linux-image-*.list")]
    if kernels:  # a sandbox boots the template's kernel, so another one in its disk would be no use
        command(["apt-mark", "hold", *(name.removesuffix(".list") for name in kernels)])


def _open_to_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def place(item: Mapping[str, Any], source: Path) -> None:
    """Move one staged file or folder to its target with its mode and owner."""
    target = Path(item["target"])
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        placed = [target, *(target / path.relative_to(source) for path in source.rglob("*"))]
    else:
        if target.is_symlink():
            target.unlink()
        shutil.copy(source, target)
        placed = [target]
        if item["mode"] is not None:
            target.chmod(item["mode"])
    for path in placed:
        owner(path, item["owner"])


def owner(path: Path, names: str) -> None:
    """Give `path` to `user:group` of the image, by name or number."""
    user, _, group = names.partition(":")
    uid = _ids(Path("/etc/passwd")).get(user, user)
    gid = _ids(Path("/etc/group")).get(group, group)
    for found, kind in ((uid, "user"), (gid, "group")):
        if isinstance(found, str) and not found.isdigit():
            raise SystemExit(f"{path}: the image has no {kind} {found!r}")
    mode = path.lstat().st_mode & 0o7777
    os.chown(path, int(uid), int(gid), follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(mode)  # a change of owner clears the set-uid bits


def _ids(table: Path) -> dict[str, int]:
    rows = [line.split(":") for line in table.read_text().splitlines()]
    return {row[0]: int(row[2]) for row in rows if len(row) > 2}


def run_steps(plan: Mapping[str, Any]) -> None:
    """Run the recipe's steps, in order, stopping at the first that fails."""
    steps = plan["run"]
    for number, step in enumerate(steps, start=1):
        first = step.strip().splitlines()[0][:60]
        say("run", number - 1, len(steps), f"step {number} of {len(steps)}: {first}")
        status = command(["/bin/sh", "-ec", step], env=plan["image"]["env"], check=False)
        if status != 0:
            raise SystemExit(f"run step {number} ended with status {status}: {first}")
    say("run", 1, 1, "steps are done")


def finish(plan: Mapping[str, Any]) -> None:
    """Set what the build itself needed otherwise: names, resolver, package sources."""
    Path("/etc/hostname").write_text(f"{plan['hostname']}\n")
    Path("/etc/hosts").write_text(
        f"127.0.0.1 localhost\n127.0.1.1 {plan['hostname']}\n::1 localhost ip6-localhost\n"
    )
    resolver = Path("/etc/resolv.conf")
    resolver.unlink(missing_ok=True)
    resolver.write_text("nameserver 10.0.2.3\n")
    Path("/etc/apt/sources.list").unlink(missing_ok=True)
    Path("/etc/apt/sources.list.d/debian.sources").write_text(plan["apt_sources"])
    command(["ldconfig"])


def image(plan: Mapping[str, Any], root: Path, disk: Path) -> None:
    """Tidy up the tree at `root` and write it to `disk` as a sparse ext4 file system."""
    for pattern in (*_MOVED_OUT, *_FORGOTTEN):
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    (root / "etc/machine-id").write_text("")
    shutil.rmtree(root / "tmp")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    with disk.open("wb") as file:
        file.truncate(plan["disk_bytes"])
    say("image", 0, 1, "writing the file system")
    argv = ["mke2fs", "-q", "-F", "-t", "ext4", "-L", "torpor", "-m", "1", "-d", str(root)]
    # the file is new, so it reads as zeros: the guest need not write its inode tables once more
    argv += ["-J", "size=32", "-E", "assume_storage_prezeroed=1", str(disk)]
    status = command(argv, check=False)
    if status != 0:
        raise SystemExit(f"mke2fs ended with status {status}")
    say("image", 1, 1, "the file system is written")


def command(argv: list[str], *, env: Mapping[str, str] | None = None, check: bool = True) -> int:
    """Run a program of the image and return its status; it stops the build unless `check` is off."""
    base = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    proxies = {
        k: v for k, v in os.environ.items() if k in ("http_proxy", "https_proxy", "no_proxy")
    }
    done = subprocess.run(
        argv, env=base | proxies | dict(env or {}), stdin=subprocess.DEVNULL, check=False
    )
    if check and done.returncode != 0:
        raise SystemExit(f"{argv[0]} ended with status {done.returncode}")
    return done.returncode


def main(argv: list[str]) -> None:
    """Do what the command line says."""
    os.umask(0o022)
    plan = json.loads(Path(argv[2]).read_text("utf-8"))
    if argv[1] == "customize":
        customize(plan, Path(argv[3]))
    else:
        image(plan, Path(argv[3]), Path(argv[4]))


if __name__ == "__main__":
    main(sys.argv)
