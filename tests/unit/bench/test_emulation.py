"""Whether a host is emulated itself is told by what it shows, and not made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from torpor.bench import host
from torpor.bench.emulation import emulated_host
from torpor.vmm.base import HostSupport

_TCG = "QEMU TCG CPU version 2.5+"


@pytest.mark.parametrize(
    ("model", "flags", "vendor", "clocks", "is_emulated"),
    [
        (_TCG, "fpu svm hypervisor", "QEMU", "tsc hpet acpi_pm", True),
        (_TCG, "fpu", None, "", True),
        ("AMD EPYC Processor", "fpu svm hypervisor", "QEMU", "tsc hpet acpi_pm", True),
        ("AMD EPYC Processor", "fpu svm hypervisor", "QEMU", "kvm-clock tsc acpi_pm", False),
        ("AMD EPYC Processor", "fpu svm", "QEMU", "tsc hpet", False),
        ("AMD EPYC Processor", "fpu svm hypervisor", "Amazon EC2", "tsc", False),
        ("AMD EPYC Processor", "fpu svm hypervisor", None, "tsc kvm-clock", False),
        ("Intel(R) Xeon(R)", "fpu vmx", "Dell Inc.", "tsc hpet", False),
    ],
)
def test_a_host_that_qemu_emulates_is_known(
    tmp_path: Path, model: str, flags: str, vendor: str | None, clocks: str, is_emulated: bool
) -> None:
    cpuinfo, dmi, sources = (tmp_path / name for name in ("cpuinfo", "vendor", "clocks"))
    block = f"processor\t: 0\nmodel name\t: {model}\nflags\t\t: {flags}\n"
    cpuinfo.write_text(f"{block}\n{block}")
    if vendor is not None:
        dmi.write_text(f"{vendor}\n")
    sources.write_text(f"{clocks}\n")
    found = emulated_host(cpuinfo, dmi, sources)
    assert (found is not None) is is_emulated
    if found is not None:
        assert "emulated" in found


def test_a_translated_guest_is_emulated_and_kvm_is_as_its_host_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "emulated_host", lambda: None)
    assert "translated" in (host._emulation(_support("tcg")) or "")
    assert host._emulation(_support("kvm")) is None
    monkeypatch.setattr(host, "emulated_host", lambda: "it is a play")
    assert host._emulation(_support("kvm")) == "it is a play"


def _support(accel: str) -> HostSupport:
    assert accel in ("tcg", "kvm")
    return HostSupport("qemu", True, "10", "tcg" if accel == "tcg" else "kvm", "a CPU", "so")
