"""QEMU by hand: its command line is the driver's, of the same files; the program is one that only greets and obeys."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from torpor.base.home import Home
from torpor.bench.floor_qemu import QemuFloor, QemuFloorMachine
from torpor.errors import VmmFailed
from torpor.vmm.base import Disk, MachineSpec, SavedMachine

_OBEYS = """
import json, os, re, socket, sys
if "--version" in sys.argv:
    print("QEMU emulator version 10.0.2")
    sys.exit()
with open("asked", "a") as asked:
    print(json.dumps(sys.argv[1:]), file=asked, flush=True)
    (fd,) = {re.search(r"fd=(\\d+)", word)[1] for word in sys.argv if word.startswith("socket,id=qmp")}
    link, _ = socket.socket(fileno=int(fd)).accept()
    lines = link.makefile("rwb")
    lines.write(b'{"QMP": {}}\\n')
    lines.flush()
    looks = 0
    for line in lines:
        what = json.loads(line)["execute"]
        print(json.dumps(what), file=asked, flush=True)
        looks += what == "query-status"
        answer = {"return": {"status": "inmigrate" if looks == 1 else "paused"}}
        if what == "cont" and os.path.exists("../refuses"):
            answer = {"error": {"desc": "I will not"}}
        lines.write(json.dumps(answer).encode() + b"\\n")
        lines.flush()
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MachineSpec:
    """A machine, on a host on which such a QEMU is."""
    program = tmp_path / "qemu"
    program.write_text(f"#!{sys.executable}\n{_OBEYS}")
    program.chmod(0o755)
    monkeypatch.setenv("TORPOR_QEMU", str(program))
    monkeypatch.setenv("TORPOR_ACCEL", "tcg")
    for name in ("disk.raw", "delta.qcow2", "image", "devices"):
        (tmp_path / name).write_bytes(b"as it was")
    return MachineSpec(
        vcpus=1,
        ram_mib=128,
        network="user",
        kernel=tmp_path / "vmlinuz",
        initrd=tmp_path / "initrd",
        cmdline="quiet",
        disk=Disk((tmp_path / "disk.raw", tmp_path / "delta.qcow2"), Path()),
    )


def _started(tmp_path: Path, spec: MachineSpec, *, is_saved: bool) -> QemuFloorMachine:
    folder = tmp_path / "machine"
    folder.mkdir()
    saved = SavedMachine(tmp_path / "image", tmp_path / "devices") if is_saved else None
    return QemuFloor(Home(tmp_path), tmp_path)._started(folder, spec, saved, 1, 7)


@pytest.mark.parametrize("is_saved", [True, False])
def test_it_is_started_with_the_same_files_and_let_run(
    tmp_path: Path, spec: MachineSpec, is_saved: bool
) -> None:
    machine = _started(tmp_path, spec, is_saved=is_saved)
    try:
        argv, *asked = map(json.loads, (tmp_path / "machine/asked").read_text().splitlines())
        line = " ".join(argv)
        assert "-sandbox" not in argv
        for name in ("disk.raw", "delta.qcow2", "machine/active.qcow2"):
            assert str(tmp_path / name) in line
        ram = tmp_path / ("image" if is_saved else "machine/ram")
        assert f"mem-path={ram}" in line
        if is_saved:
            assert argv[argv.index("-incoming") + 1] == f"file:{tmp_path / 'devices'}"
            assert asked == ["qmp_capabilities", "query-status", "query-status", "cont"]
        else:
            assert "-incoming" not in argv
            assert asked == ["qmp_capabilities"]
        assert 0 < machine.times.start_s <= machine.times.running_s
        assert machine.agent_socket.is_socket()
    finally:
        machine.close()
    assert not machine.process.alive()
    assert not (tmp_path / "machine").exists()
    assert (tmp_path / "image").read_bytes() == b"as it was"


def test_what_is_refused_leaves_no_process(tmp_path: Path, spec: MachineSpec) -> None:
    (tmp_path / "refuses").touch()
    with pytest.raises(VmmFailed, match="I will not"):
        _started(tmp_path, spec, is_saved=True)
    assert not _running_in(tmp_path / "machine")


def _running_in(folder: Path) -> list[int]:
    """Return the processes in `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue
    return found
