from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.records import make_info, make_template
from torpor.base.units import GIB
from torpor.errors import InsufficientResources, InvalidRequest
from torpor.model import SandboxSpec, SandboxState
from torpor.sandboxes import admission
from torpor.sandboxes.admission import Sizes, check_room, choose_sizes


def _meminfo(tmp_path: Path, total_mib: int, available_mib: int) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(
        f"MemTotal: {total_mib << 10} kB\nMemFree: 1 kB\nMemAvailable: {available_mib << 10} kB\n"
    )
    return path


def test_sizes_come_from_the_template_unless_given() -> None:
    template = make_template(vcpus=2, ram_mib=1024, disk_gib=6)
    assert choose_sizes(SandboxSpec(template="base"), template) == Sizes(2, 1024, 6)
    spec = SandboxSpec(template="base", vcpus=1, ram_mib=256, disk_gib=9)
    assert choose_sizes(spec, template) == Sizes(1, 256, 9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vcpus": 0}, "vcpus is 0; 1 to"),
        ({"vcpus": 10_000}, "vcpus is 10000"),
        ({"ram_mib": 64}, "ram_mib is 64; 128 to"),
        ({"ram_mib": 1 << 40}, "ram_mib is"),
        ({"disk_gib": 0}, "disk_gib is 0"),
        ({"disk_gib": 3}, "disk_gib is 3; the template base needs 4"),
    ],
)
def test_bad_sizes_are_refused_with_what_was_wanted(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        choose_sizes(SandboxSpec(template="base", **changes), make_template())
    assert caught.value.hint


def test_memory_promised_to_others_counts_and_the_numbers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "free_bytes", lambda _: 100 * GIB)
    meminfo = _meminfo(tmp_path, 4096, 4000)
    room = Sizes(1, 1000, 4)
    others = [make_info(ram_mib=1000), make_info(ram_mib=1000, state=SandboxState.PAUSED)]
    check_room(room, others, tmp_path, meminfo)
    others.append(make_info(ram_mib=2000, state=SandboxState.FAILED))
    check_room(room, others, tmp_path, meminfo)  # a failed one has no memory
    others.append(make_info(ram_mib=100, state=SandboxState.CREATING))
    with pytest.raises(
        InsufficientResources, match="it needs 1160 MiB and 1004 MiB are left"
    ) as caught:
        check_room(room, others, tmp_path, meminfo)
    assert caught.value.facts["needed_mib"] == 1160


def test_memory_that_others_on_the_host_use_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "free_bytes", lambda _: 100 * GIB)
    with pytest.raises(InsufficientResources, match="no memory"):
        check_room(Sizes(1, 1000, 4), [], tmp_path, _meminfo(tmp_path, 65536, 1500))


def test_a_disk_that_could_not_be_filled_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "free_bytes", lambda _: 4 * GIB)
    with pytest.raises(InsufficientResources, match="no disk for a sandbox of 4 GiB"):
        check_room(Sizes(1, 128, 4), [], tmp_path, _meminfo(tmp_path, 8192, 8000))
    check_room(Sizes(1, 128, 3), [], tmp_path, _meminfo(tmp_path, 8192, 8000))
