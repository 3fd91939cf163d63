"""Firecracker by hand: what it is asked, of which files, and that nothing of it is left; the program is one that only listens."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from torpor.base.home import Home
from torpor.bench import floor_firecracker
from torpor.bench.floor import FloorMachine
from torpor.bench.floor_firecracker import FirecrackerFloor
from torpor.errors import InvalidRequest, VmmFailed
from torpor.vmm import confine, kvm
from torpor.vmm.base import Disk, MachineSpec, SavedMachine
from torpor.vmm.firecracker import network

_LISTENS = """
import http.server, json, os, socketserver, sys
if "--version" in sys.argv:
    print("Firecracker v1.12.1")
    sys.exit()

class Asked(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(os.environ["ASKED"], "a") as file:
            print(json.dumps([self.path, json.loads(body), sys.argv[1:], os.getcwd()]), file=file)
        refused = self.path == os.environ["REFUSES"]
        answer = b'{"fault_message": "I will not"}' if refused else b""
        self.send_response(400 if refused else 204)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def address_string(self):
        return "-"

    def log_message(self, *_):
        pass

name = sys.argv[sys.argv.index("--api-sock") + 1]
with socketserver.UnixStreamServer(name, Asked) as server:
    server.serve_forever()
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which such a Firecracker is; the file gets what it is asked."""
    tools = tmp_path / "tools"
    tools.mkdir()
    _program(tools / "firecracker", f"#!{sys.executable}\n{_LISTENS}")
    _program(tools / "ip", "#!/bin/sh\nexit 0\n")
    _program(
        tools / "unshare", '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    )
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(tools / "firecracker"))
    monkeypatch.setattr(kvm, "look", lambda: kvm.Kvm(True, "so the test says"))
    monkeypatch.setattr(confine, "kvm_is_closed", lambda *_: False)
    monkeypatch.setattr(network, "check", lambda: None)
    monkeypatch.setattr(floor_firecracker, "_ENV", _environment(tmp_path, refuses=""))
    return tmp_path / "asked"


def _environment(folder: Path, *, refuses: str) -> dict[str, str]:
    path = f"{folder}/tools:/usr/bin:/bin"
    return {"PATH": path, "ASKED": str(folder / "asked"), "REFUSES": refuses}


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def spec(tmp_path: Path) -> MachineSpec:
    for name in ("old.raw", "new.raw", "initrd", "image", "devices"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    (tmp_path / "vmlinuz").write_bytes(b"\x7fELF, or so it says")
    return MachineSpec(
        vcpus=1,
        ram_mib=128,
        network="user",
        kernel=tmp_path / "vmlinuz",
        initrd=tmp_path / "initrd",
        cmdline="quiet",
        disk=Disk((tmp_path / "old.raw", tmp_path / "new.raw"), Path()),
    )


def _started(tmp_path: Path, spec: MachineSpec, *, is_saved: bool) -> FloorMachine:
    folder = tmp_path / "machine"
    folder.mkdir()
    saved = SavedMachine(tmp_path / "image", tmp_path / "devices") if is_saved else None
    return FirecrackerFloor(Home(tmp_path), tmp_path)._started(folder, spec, saved, 1, 7)


def _asked(file: Path) -> list[list[Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_snapshot_is_loaded_with_the_same_files_and_a_copy_of_the_disk(
    tmp_path: Path, asked: Path, spec: MachineSpec
) -> None:
    machine = _started(tmp_path, spec, is_saved=True)
    try:
        ((path, body, argv, cwd),) = _asked(asked)
        assert path == "/snapshot/load"
        assert body["snapshot_path"] == str(tmp_path / "devices")
        assert body["mem_backend"]["backend_path"] == str(tmp_path / "image")
        assert body["resume_vm"] is True
        assert "--no-seccomp" in argv
        assert cwd == str(tmp_path / "machine")
        disk = tmp_path / "machine/disk"
        assert disk.stat().st_size == 1 << 30
        with disk.open("rb") as file:
            assert file.read(700) == b"new.raw" * 100
        assert not disk.samefile(tmp_path / "new.raw")
        assert 0 < machine.times.start_s <= machine.times.running_s
        assert machine.agent_port is not None
        assert machine.process.alive()
    finally:
        machine.close()
    assert not machine.process.alive()
    assert not (tmp_path / "machine").exists()
    assert (tmp_path / "new.raw").read_bytes() == b"new.raw" * 100


def test_a_cold_boot_is_asked_for_in_the_drivers_words(
    tmp_path: Path, asked: Path, spec: MachineSpec
) -> None:
    machine = _started(tmp_path, spec, is_saved=False)
    machine.close()
    paths = [one[0] for one in _asked(asked)]
    assert paths[-1] == "/actions"
    assert "/boot-source" in paths
    assert "/snapshot/load" not in paths


def test_what_is_refused_leaves_no_process(
    tmp_path: Path, asked: Path, spec: MachineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = _environment(tmp_path, refuses="/snapshot/load")
    monkeypatch.setattr(floor_firecracker, "_ENV", refusing)
    with pytest.raises(VmmFailed, match="I will not"):
        _started(tmp_path, spec, is_saved=True)
    assert not _running_in(tmp_path / "machine")


@pytest.mark.parametrize("broken", ["ip", "firecracker"])
def test_a_start_that_fails_is_told(
    tmp_path: Path, asked: Path, spec: MachineSpec, broken: str
) -> None:
    floor = FirecrackerFloor(Home(tmp_path), tmp_path)
    _program(tmp_path / "tools" / broken, "#!/bin/sh\necho no luck >&2\nexit 1\n")
    (tmp_path / "machine").mkdir()
    words = "cannot be made by hand: no luck" if broken == "ip" else "ended before it listened"
    with pytest.raises(VmmFailed, match=words):
        floor._started(tmp_path / "machine", spec, None, 1, 0)
    assert not _running_in(tmp_path / "machine")


def test_a_disk_of_qemus_is_refused(tmp_path: Path, asked: Path, spec: MachineSpec) -> None:
    floor = FirecrackerFloor(Home(tmp_path), tmp_path)
    layers = (*spec.disk.layers, tmp_path / "delta.qcow2")
    other = MachineSpec(
        vcpus=1,
        ram_mib=128,
        network="user",
        kernel=spec.kernel,
        initrd=spec.initrd,
        cmdline="",
        disk=Disk(layers, Path()),
    )
    with pytest.raises(InvalidRequest, match="not a disk that Firecracker can read"):
        floor._started(tmp_path, other, None, 1, 0)


def _running_in(folder: Path) -> list[int]:
    """Return this test's processes in `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue
    return found
