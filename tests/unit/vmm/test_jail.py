"""Firecracker's jail: what is started, what is in it, what it is used for, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from torpor.errors import HostNotReady
from torpor.layers.seal import LAYERS_GID
from torpor.vmm.base import Wall
from torpor.vmm.confine import User
from torpor.vmm.firecracker import config, drives, given, jail, network


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "sbx_One_2"
    (folder / "vm").mkdir(parents=True)
    return folder


def _program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_a_name_that_the_jailer_takes() -> None:
    assert config.instance("sbx_01J.x y") == "sbx-01J-x-y"
    assert len(config.instance("x" * 100)) == 64


def test_the_jailer_is_told_the_machines_own_user_and_root(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    jailer = jail.Jailer(Path("/opt/jailer"), Path("/opt/firecracker-1.12"))
    user = User(1_900_000_007, 1_900_000_007, (1, 2))
    argv = jailer.argv(folder, "one", user, config.arguments("vmm.log"))
    assert argv[:2] == ["/opt/jailer", "--id"]
    told = dict(zip(argv[1:11:2], argv[2:12:2], strict=True))
    assert told == {
        "--id": "one",
        "--exec-file": "/opt/firecracker-1.12",
        "--uid": "1900000007",
        "--gid": str(LAYERS_GID),
        "--chroot-base-dir": str(folder / "jail"),
    }
    assert argv[11] == "--"
    assert config.MARK in "\0".join(argv).encode(), "so that a sweep finds it"
    jailer.prepare(folder, "one")
    root = folder / "jail/firecracker-1.12/one/root"
    assert root.samefile(folder / "vm"), "where the jailer looks for it"


def test_the_mounts_are_made_before_it_is_told_to_go_on(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "with space")
    with network.gate() as gate:
        argv = gate.argv_of_jailer(["jailer", "--id"], jail.mounts(folder))
        unjailed = gate.argv(None, ["firecracker"])
    assert argv[1:4] == ["--net", "--mount", "--"]
    script = argv[argv.index("-c") + 1]
    assert script.index("mount -t tmpfs") < script.index("read -r go")
    assert script.count(" && ") == 3 + 2, "one that fails ends it all"
    assert f"'{folder}/vm/dev'" in script
    assert argv[-2:] == ["jailer", "--id"]
    assert "mount" not in unjailed[unjailed.index("-c") + 1]


def test_nothing_of_a_jail_is_left_and_no_link_is_followed(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    kept = tmp_path / "kept"
    (kept / "deep").mkdir(parents=True)
    (kept / "deep/file").write_text("kept")
    jailer = jail.Jailer(Path("/opt/jailer"), Path("/opt/firecracker"))
    jailer.prepare(folder, "one")
    inner = folder / "vm"
    (inner / "console.log").write_text("said")
    (inner / "run").symlink_to(kept)
    (inner / "in/x").symlink_to(kept)
    (inner / ".disk").mkdir()
    os.mkfifo(inner / "pipe")
    (folder / "in/layer.raw").hardlink_to(kept / "deep/file")
    for _ in range(2):
        jail.clear(folder)
        assert [path.name for path in folder.iterdir()] == ["vm"]
        assert [path.name for path in inner.iterdir()] == ["console.log"]
    assert (kept / "deep/file").read_text() == "kept"
    jail.clear(tmp_path / "none")
    jailer.prepare(folder, "one")


def test_no_folder_is_too_deep_to_be_cleared(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    for name in ("console.log", ".disk"):
        (folder / "vm" / name).mkdir()
        at = os.open(folder / "vm" / name, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("folder", dir_fd=at)
            below = os.open("folder", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
        os.close(at)
    try:
        drives.lead(folder / "vm", "disk", tmp_path / "one.raw")
        assert (folder / "vm/disk").is_symlink()
        jail.clear(folder)
        assert list((folder / "vm").iterdir()) == []
    except BaseException:  # pytest's own cleanup cannot remove it either
        subprocess.run(["rm", "-rf", folder], check=True)
        raise


def test_a_file_system_that_starts_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Found:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr(os, "statvfs", lambda _: Found)
    with pytest.raises(HostNotReady, match="noexec") as caught:
        jail.Jailer(Path("j"), Path("firecracker")).prepare(_folder(tmp_path), "one")
    assert "TORPOR_JAILER" in str(caught.value.hint)


def test_in_a_jail_there_are_the_files_that_were_given_and_their_names_stay(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    inner = folder / "vm"
    one, two, same = tmp_path / "one.raw", tmp_path / "two.raw", tmp_path / "other/one.raw"
    same.parent.mkdir()
    for file in (one, two, same):
        file.write_text(str(file))
    drives.lead(inner, "disk", one)
    drives.let_go(inner)
    assert (inner / "disk").readlink() == one, "without a jail it is the file itself"
    assert given.of(folder, one) == one
    for own in (inner / "one.raw", inner / "x/one.raw", Path("socket:[1]")):
        assert given.of(folder, own) is None
    jail.Jailer(Path("j"), Path("firecracker")).prepare(folder, "one")
    for _ in range(2):
        drives.lead(inner, "disk", one)
        assert (inner / "disk").readlink() == Path("in/one.raw")
        assert (folder / "in/one.raw").samefile(one)
    assert given.of(folder, Path("/in/one.raw")).samefile(one)
    for own in ("/x/in/one.raw", "/one.raw", "in/one.raw", f"{folder}/in/one.raw", "socket:[1]"):
        assert given.of(folder, Path(own)) is None, "that is its own, or none"
    drives.lead(inner, "volume1", same)
    assert (folder / "in/one.raw").samefile(same)
    drives.lead(inner, "disk", two)
    drives.let_go(inner)
    assert sorted(path.name for path in (folder / "in").iterdir()) == ["one.raw", "two.raw"]
    drives.lead_nowhere(inner, 1)
    drives.lead(inner, "disk", one)
    drives.lead_back(inner, "disk", two)
    assert [path.name for path in (folder / "in").iterdir()] == ["two.raw"]
    assert one.exists()


def test_the_disks_of_a_machine_in_a_jail_are_found_by_its_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path)
    jail.Jailer(Path("j"), Path("firecracker")).prepare(folder, "one")
    disk = tmp_path / "lyr_1.raw"
    disk.touch()
    drives.lead(folder / "vm", "disk", disk)
    said = ["socket:[12]", "/in/lyr_1.raw", "/volume1", f"{folder}/vm/console.log", "/vmm.log"]
    monkeypatch.setattr(drives, "_files", lambda _: [(folder, Path(name)) for name in said])
    found = drives.opened(folder / "vm", 1)
    assert list(found) == ["disk"]
    assert found["disk"].path == folder / "in/lyr_1.raw"
    assert found["disk"].path.samefile(disk)


def test_a_file_of_another_file_system_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path)
    jail.Jailer(Path("j"), Path("firecracker")).prepare(folder, "one")

    def elsewhere(*_: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", elsewhere)
    with pytest.raises(HostNotReady, match="not on the file system"):
        given.give(folder, tmp_path / "one.raw")


def _found(firecracker: Path, version: str = "1.12.1") -> tuple[jail.Jailer | None, Wall]:
    return asyncio.run(jail.find(firecracker, version))


def test_the_jailer_beside_firecracker_is_used_by_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(jail, "_lacking", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    firecracker = _program(tmp_path / "bin/firecracker-v1.12.1", "Firecracker v1.12.1")
    link = tmp_path / "firecracker"
    link.symlink_to(firecracker)
    jailer, wall = _found(link)
    assert (jailer, wall.stands) == (None, False)
    assert "not installed" in wall.why
    assert "host setup" in str(wall.fix)
    beside = _program(tmp_path / "bin/jailer", "Jailer v1.12.1")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    jailer, wall = _found(link)
    assert jailer == jail.Jailer(beside, firecracker)
    assert (wall.stands, wall.fix) == (True, None)
    assert "1.12.0" in _found(link, "1.12.0")[1].why, "it belongs to its own Firecracker"
    monkeypatch.setenv("TORPOR_JAILER", "none")
    assert _found(link)[1].fix == "unset TORPOR_JAILER"
    monkeypatch.setenv("TORPOR_JAILER", str(tmp_path / "missing"))
    assert "is no program" in _found(link)[1].why
    monkeypatch.delenv("TORPOR_JAILER")
    monkeypatch.setattr(jail, "_lacking", lambda: "this process lacks CAP_MKNOD")
    assert "lacks CAP_MKNOD" in _found(link)[1].why
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert _found(link)[1].fix == "run the daemon as root"


def test_the_jailer_starts_no_program_of_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    _program(tmp_path / "jailer", "Jailer v1.12.1")
    jailer, wall = _found(_program(tmp_path / "fc", "Firecracker v1.12.1"))
    assert jailer is None
    assert "whose name is fc" in wall.why


@pytest.mark.parametrize(
    ("uids", "capabilities", "words"),
    [
        ("0 0 4294967295", "000001ffffffffff", None),
        ("0 100000 65536", "000001ffffffffff", "user namespace"),
        ("0 0 4294967295", "00000000a80425fb", "CAP_SYS_ADMIN"),
        ("0 0 4294967295", "0000000000000000", "CAP_MKNOD"),
    ],
)
def test_a_root_that_may_not_build_a_jail_is_told(
    tmp_path: Path, uids: str, capabilities: str, words: str | None
) -> None:
    (tmp_path / "uid_map").write_text(f"{uids}\n")
    (tmp_path / "status").write_text(f"Name:\tx\nCapPrm:\t0\nCapEff:\t{capabilities}\n")
    found = jail._lacking(tmp_path)
    assert found is None if words is None else words in str(found)
