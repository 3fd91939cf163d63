"""A root file system that PandaStack's client sends becomes a template, boots, sleeps and is forked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pandastack
import pytest
from pandastack.exceptions import BadRequestError

from tests.compat.serving import panda, token, url
from torpor import Snapshot
from torpor.base.home import Home
from torpor.templates.debian import find_tool
from torpor.templates.manifest import read_pointer

__all__ = ["panda", "token", "url"]

NAME = "compat-rootfs"
LEFT_OUT = (
    *("./opt/torpor", "./etc/torpor", "./etc/systemd", "./usr/sbin/init", "./usr/lib/systemd"),
    *(
        "./usr/lib/modules",
        "./usr/lib/udev",
        "./usr/share",
        "./usr/lib/git-core",
        "./var/lib/torpor",
    ),
    *("./usr/sbin/resize2fs", "./usr/sbin/poweroff", "./usr/bin/systemctl"),
)


@pytest.fixture
def rootfs(base: str, vm_home: Home, tmp_path: Path) -> Path:
    """Debian without init, kernel and agent, as an image for containers has it: what is left of `base`."""
    disk = vm_home.templates / read_pointer(vm_home.templates, base) / "disk.raw"
    tree, path = tmp_path / "tree", tmp_path / "rootfs.tar"
    tree.mkdir()
    debugfs = find_tool("debugfs") or "debugfs"
    argv = [debugfs, "-R", f"rdump / {tree}", str(disk)]
    subprocess.run(argv, check=True, capture_output=True, timeout=300)
    argv = [
        "tar",
        "-C",
        str(tree),
        "-cf",
        str(path),
        *(f"--exclude={name}" for name in LEFT_OUT),
        ".",
    ]
    subprocess.run(argv, check=True, timeout=300)
    shutil.rmtree(tree)
    return path


def test_a_template_from_a_root_file_system(
    panda: pandastack.Client, base: str, rootfs: Path, vm_home: Home
) -> None:
    build = panda.templates.build(NAME, rootfs_tar=str(rootfs), size_mb=2048)
    lines = list(panda.templates.build_logs(build.id))
    assert build.status == "done", "\n".join(lines)
    try:
        assert any("the agent runs on /usr/bin/python3" in line for line in lines)
        assert panda.templates.get(NAME).is_global is False
        made = panda.sandboxes.create(template=NAME)
        try:
            assert made.exec("cat /proc/1/comm").stdout != "systemd\n"
            assert made.exec("echo $PWD; id -u").stdout == "/workspace\n0\n"
            assert made.exec("nproc && python3 -c 'print(6 * 7)'").stdout.endswith("42\n")
            made.exec("echo here >/dev/shm/note", check=True)
            made.hibernate()
            assert made.exec("cat /dev/shm/note").stdout == "here\n"
            fork = made.fork()
            try:
                assert fork.exec("cat /dev/shm/note").stdout == "here\n"
                assert (
                    fork.exec("cat /etc/machine-id").stdout
                    != made.exec("cat /etc/machine-id").stdout
                )
            finally:
                fork.kill()
            # nobody's children stay behind as zombies: the init reaps them
            made.exec("sh -c 'sleep 0.2 & exec true'")
            zombies = made.exec("sleep 1; cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '")
            assert zombies.stdout == "0\n"
        finally:
            made.kill()
    finally:
        forget(panda, vm_home)


def forget(panda: pandastack.Client, vm_home: Home) -> None:
    """Delete the template, and what its deleted sandboxes left: the snapshots of their last sleep and their fork."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORPOR_HOME", str(vm_home.root))
        left = [s.id for s in Snapshot.list() if s.template == NAME and s.reason != "template"]
    if left:
        with pytest.raises(BadRequestError, match="is needed by snap_"):
            panda.templates.delete(NAME)
    for snapshot_id in left:
        panda.snapshots.delete(snapshot_id)
    panda.templates.delete(NAME)
