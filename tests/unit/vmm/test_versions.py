"""Which version a machine is of: what was started, whatever lies there since; and what lies there is looked at each time."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from torpor.base.proc import ProcessId
from torpor.errors import HostNotReady
from torpor.vmm.base import Disk, MachineSpec
from torpor.vmm.firecracker import FirecrackerDriver, config, jail
from torpor.vmm.firecracker import driver as firecracker
from torpor.vmm.firecracker import host as firecracker_host
from torpor.vmm.qemu import QemuDriver
from torpor.vmm.qemu import host as qemu_host
from torpor.vmm.qemu.machine import qmp_socket

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _firecracker(answer: object) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    return serve


def _qemu(answer: object) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"QMP": {"version": {}, "capabilities": []}}\n')
        while data := await reader.read(
            65536
        ):  # the client ends no message, and waits for each answer
            asked = json.loads(data)
            said = answer if asked["execute"] == "query-version" else {}
            number = {"id": asked["id"]} if "id" in asked else {}
            writer.write(json.dumps({"return": said} | number).encode() + b"\n")
        writer.close()

    return serve


async def _adopted_version(
    driver: FirecrackerDriver | QemuDriver, folder: Path, place: Path, serve: Serve
) -> str:
    async with await asyncio.start_unix_server(serve, place):
        machine = await driver.adopt(folder)
        assert machine is not None
        try:
            return await machine.version()
        finally:
            await machine.aclose()


def _folder(tmp_path: Path, **more: Any) -> Path:
    """Return the folder of a machine whose process is this one."""
    folder = tmp_path / "sbx_one"
    (folder / "vm").mkdir(parents=True)
    me = ProcessId.of(os.getpid())
    assert me is not None
    record = {"format": 1, "pid": me.pid, "started_ticks": me.started_ticks, "ram": "/ram"}
    (folder / "vmm.json").write_text(json.dumps(record | {"ram_bytes": 4096} | more))
    return folder


def _said(version: str) -> dict[str, str]:
    return {"id": "one", "state": "Running", "vmm_version": version, "app_name": "Firecracker"}


@pytest.mark.parametrize(
    ("noted", "said", "is_of"),
    [
        ({"version": "1.12.1"}, _said("1.14.0"), "1.12.1"),
        ({}, _said("1.13.2"), "1.13.2"),
        ({}, _said("1.13.2; " + "x" * 100), "unknown"),
        ({}, {"state": "Running"}, "unknown"),
    ],
)
def test_a_firecracker_that_was_adopted_has_the_version_that_was_started(
    tmp_path: Path, noted: dict[str, str], said: object, is_of: str
) -> None:
    folder = _folder(tmp_path, **noted)
    place = folder / "vm" / config.API_SOCKET
    driver = FirecrackerDriver()
    assert asyncio.run(_adopted_version(driver, folder, place, _firecracker(said))) == is_of


@pytest.mark.parametrize(
    ("noted", "said", "is_of"),
    [
        ({"version": "9.2.1"}, {"qemu": {"major": 10, "minor": 0, "micro": 2}}, "9.2.1"),
        ({}, {"qemu": {"major": 10, "minor": 0, "micro": 2}}, "10.0.2"),
        ({}, {"qemu": {"major": 10, "minor": "0" * 100, "micro": 2}}, "unknown"),
        ({}, {"qemu": [10, 0, 2]}, "unknown"),
        ({}, {}, "unknown"),
    ],
)
def test_a_qemu_that_was_adopted_has_the_version_that_was_started(
    tmp_path: Path, noted: dict[str, str], said: object, is_of: str
) -> None:
    folder = _folder(tmp_path, **noted)
    driver = QemuDriver()
    version = asyncio.run(_adopted_version(driver, folder, qmp_socket(folder), _qemu(said)))
    assert version == is_of


def test_the_version_is_recorded_with_the_process(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    me = ProcessId.of(os.getpid())
    assert me is not None
    firecracker._record(folder, me, None, 4096, "1.12.1")
    record = json.loads((folder / "vmm.json").read_text())
    assert (record["version"], record["pid"]) == ("1.12.1", me.pid)


def test_a_machine_starts_with_the_firecracker_that_is_there_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = MachineSpec(
        vcpus=1,
        ram_mib=128,
        network="none",
        kernel=tmp_path / "none",
        initrd=tmp_path / "none",
        cmdline="",
        disk=Disk((), tmp_path / "none"),
    )
    asked: list[str] = []

    async def find() -> firecracker_host.FirecrackerHost:
        asked.append("found")
        return firecracker_host.FirecrackerHost(
            Path("f"), "1.12.1", "", None, jail._not_used("it is not there", "nothing")
        )

    async def none(_: Path) -> Path:
        raise HostNotReady("no further")

    monkeypatch.setattr(firecracker_host, "find_firecracker", find)
    monkeypatch.setattr("torpor.vmm.firecracker.kernel.elf_of", none)
    driver = FirecrackerDriver()
    for _ in range(2):
        with pytest.raises(HostNotReady, match="no further"):
            asyncio.run(driver.start(tmp_path, spec))
    assert len(asked) == 2


def test_an_overlay_is_made_by_the_qemu_img_that_is_there_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("9.2.1", "10.0.2"):
        folder = tmp_path / version
        folder.mkdir()
        for name, line in (
            ("qemu-system-x86_64", f"echo QEMU emulator version {version}"),
            ("qemu-img", f"echo {version} >$5"),
        ):
            (folder / name).write_text(f"#!/bin/sh\n{line}\n")
            (folder / name).chmod(0o755)
    driver = QemuDriver()
    monkeypatch.delenv("TORPOR_QEMU", raising=False)
    path = os.environ["PATH"]
    made = []
    for version in ("9.2.1", "10.0.2"):
        monkeypatch.setenv("PATH", f"{tmp_path / version}:{path}")
        overlay = tmp_path / f"overlay-{version}"
        asyncio.run(driver.create_overlay(overlay, 1 << 20))
        assert asyncio.run(qemu_host.find_qemu()).version == version
        made.append(overlay.read_text().strip())
    assert made == ["9.2.1", "10.0.2"]


def test_a_jailer_is_asked_its_version_again_once_it_was_replaced(tmp_path: Path) -> None:
    jailer = tmp_path / "jailer"
    asked = tmp_path / "asked"
    for version in ("1.12.1", "1.13.0"):
        half = tmp_path / "half"
        half.write_text(f"#!/bin/sh\necho >>{asked}\necho Jailer v{version}\n")
        half.chmod(0o755)
        half.replace(jailer)
        assert asyncio.run(jail._version(jailer)) == version
        assert asyncio.run(jail._version(jailer)) == version
    assert asked.read_text() == "\n\n", "once each"
    jailer.unlink()
    assert asyncio.run(jail._version(jailer)) is None
