"""`torpor doctor`: what each check says about a host that has, lacks or hides something."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from torpor.base.home import Home
from torpor.doctor import checks, collect, collect_now
from torpor.errors import HostNotReady
from torpor.vmm.base import HostSupport


class StubDriver:
    """A driver that only answers `probe`."""

    name = "qemu"

    def __init__(self, support: HostSupport) -> None:
        self._support = support

    async def probe(self) -> HostSupport:
        return self._support


def _listed(report: dict[str, object]) -> list[dict[str, object]]:
    listed = report["checks"]
    assert isinstance(listed, list)
    return [dict(check) for check in listed]


def found_by(report: dict[str, object], name: str) -> dict[str, object]:
    return next(check for check in _listed(report) if check["name"] == name)


def test_report_is_json_and_complete(tmp_path: Path) -> None:
    report = collect_now(Home(tmp_path / "home"))
    assert json.loads(json.dumps(report)) == report
    listed = report["checks"]
    assert isinstance(listed, list)
    names = [check["name"] for check in listed]
    assert len(names) == len(set(names))
    assert {"qemu", "mmdebstrap", "mke2fs", "busybox", "disk", "memory", "reflink", "home"} <= set(
        names
    )
    for check in listed:
        assert set(check) == {"name", "status", "found", "why", "fix"}
        assert check["status"] in ("ok", "warn", "missing")
        assert check["status"] != "missing" or check["fix"]
    assert report["ok"] == all(check["status"] != "missing" for check in listed)
    assert not (tmp_path / "home").exists()  # looking changes nothing


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_accelerator_says_why(tmp_path: Path, anyio_backend: str) -> None:
    support = HostSupport("qemu", True, "10.0.2", "tcg", "max", "/dev/kvm lies")
    driver = StubDriver(support)
    report = await collect(Home(tmp_path), driver=driver)  # type: ignore[arg-type]
    assert found_by(report, "qemu")["status"] == "ok"
    accelerator = found_by(report, "accelerator")
    assert (accelerator["status"], accelerator["found"]) == ("warn", "tcg")
    assert accelerator["why"] == "/dev/kvm lies"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_machines_without_a_network_are_told(tmp_path: Path, anyio_backend: str) -> None:
    support = HostSupport(
        "firecracker", True, "1.12.1", "kvm", "max", "real", networks=frozenset({"none"})
    )
    report = await collect(Home(tmp_path), driver=StubDriver(support))  # type: ignore[arg-type]
    network = found_by(report, "network")
    assert (network["status"], network["found"]) == ("warn", "none")
    assert "--network none" in str(network["fix"])


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_firecracker_needs_is_asked_only_where_it_is_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    monkeypatch.setattr("torpor.vmm.firecracker.kernel.finds_zstd", lambda: None)
    driver = StubDriver(HostSupport("firecracker", True, "1.12.1", "kvm", "max", "real"))
    report = await collect(Home(tmp_path), driver=driver)  # type: ignore[arg-type]
    assert not {"zstd", "tun"} & {str(check["name"]) for check in _listed(report)}
    driver.name = "firecracker"
    report = await collect(Home(tmp_path), driver=driver)  # type: ignore[arg-type]
    assert report["ok"] is False
    zstd = found_by(report, "zstd")
    assert (zstd["status"], zstd["fix"]) == ("missing", "sudo apt-get install zstd")
    assert found_by(report, "tun")["status"] in ("ok", "missing")


def test_zstd_is_found_as_program_or_as_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert checks.check_zstd().status == "missing"
    (tmp_path / "zstd").touch(0o755)
    assert checks.check_zstd().found == str(tmp_path / "zstd")
    (tmp_path / "zstd").unlink()
    monkeypatch.delitem(sys.modules, "zstandard")
    (tmp_path / "zstandard.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert checks.check_zstd().status == "ok"


def test_a_host_without_taps_is_told(tmp_path: Path) -> None:
    device = tmp_path / "tun"
    lacking = checks.check_tun(device)
    assert (lacking.status, lacking.found) == ("missing", f"{device} is not there")
    assert "modprobe tun" in str(lacking.fix)
    device.touch()
    assert checks.check_tun(device).status == "missing", "it is a file"
    assert checks.check_tun(Path("/dev/null")).status == "ok"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_missing_qemu_is_not_ok(tmp_path: Path, anyio_backend: str) -> None:
    support = HostSupport(
        "qemu", False, None, None, None, "QEMU is not installed", "run: apt-get …"
    )
    driver = StubDriver(support)
    report = await collect(Home(tmp_path), driver=driver)  # type: ignore[arg-type]
    assert report["ok"] is False
    assert found_by(report, "qemu")["fix"] == "run: apt-get …"


def test_a_check_that_breaks_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks() -> checks.Check:
        raise ValueError("odd")

    def refuses() -> checks.Check:
        raise HostNotReady("busybox is not installed", hint="run: this")

    monkeypatch.setattr(checks, "check_memory", breaks)
    monkeypatch.setattr(checks, "check_busybox", refuses)
    report = collect_now(Home(tmp_path))
    assert "odd" in str(found_by(report, "memory")["found"])
    busybox = found_by(report, "busybox")
    assert (busybox["status"], busybox["fix"]) == ("missing", "run: this")
    assert report["ok"] is False


def test_missing_tool_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_tool", lambda name: None)
    assert checks.check_tool("mmdebstrap").fix == "sudo apt-get install mmdebstrap"
    assert checks.check_tool("e2fsck").fix == "sudo apt-get install e2fsprogs"


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    assert "made when it is first used" in checks.check_home(home).found
    home.prepare()
    assert checks.check_home(home).status == "ok"
    home.root.chmod(0o755)
    assert checks.check_home(home).status == "warn"
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    foreign = checks.check_home(home)
    assert foreign.status == "missing"
    assert "belongs to uid" in foreign.found


def test_home_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = checks.check_home(Home(Path("/nowhere/home")))
    assert found.status == "missing"
    assert "TORPOR_HOME" in str(found.fix)


def test_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "free_bytes", lambda folder: 1 << 30)
    found = checks.check_disk(Home(tmp_path / "not" / "yet"))
    assert (found.status, found.found) == ("warn", f"1.0 GiB free at {tmp_path}")


def test_reflink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "can_reflink", lambda folder: True)
    assert checks.check_reflink(Home(tmp_path)).status == "ok"
    monkeypatch.setattr(checks, "can_reflink", lambda folder: False)
    assert checks.check_reflink(Home(tmp_path)).status == "warn"


def test_templates(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.prepare()
    assert checks.check_templates(home).fix == "torpor template build base"
    (home.templates / "own.json").write_text('{"format": 1, "digest": "' + "0" * 64 + '"}')
    damaged = checks.check_templates(home)
    assert "damaged: own" in damaged.found


@pytest.mark.parametrize(
    ("level", "is_root", "status", "words"),
    [
        (None, False, "ok", "can be read"),
        ("0\n", False, "ok", "can be read"),
        ("1\n", False, "warn", "after a restart"),
        ("2\n", False, "warn", "always"),
        ("2\n", True, "ok", "as root"),
        ("3\n", True, "warn", "always"),
    ],
)
def test_reading_machines_memory(
    tmp_path: Path, level: str | None, is_root: bool, status: str, words: str
) -> None:
    scope = tmp_path / "ptrace_scope"
    if level is not None:
        scope.write_text(level)
    found = checks.check_machine_memory(scope, is_root=is_root)
    assert (found.status, words in found.found) == (status, True)
