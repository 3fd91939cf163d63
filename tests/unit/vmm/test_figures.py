"""What drivers count of their machines' devices: lines of a Firecracker added up, answers of a QEMU, and nothing believed."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torpor.errors import VmmFailed
from torpor.model_usage import DeviceFigures
from torpor.vmm.firecracker import figures as fc
from torpor.vmm.firecracker.figures import KEPT, Figures
from torpor.vmm.qemu.figures import figures_of


def _line(**block: object) -> bytes:
    net = {"rx_bytes_count": 1000, "rx_packets_count": 2, "tx_rate_limiter_throttled": 1}
    told = {"utc_timestamp_ms": 1, "block": block, "block_disk0": block, "net": net, "vcpu": {}}
    return json.dumps(told).encode() + b"\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vm").mkdir()
    return tmp_path


def _write(folder: Path, *lines: bytes) -> None:
    with (folder / "vm/metrics").open("ab") as file:
        file.writelines(lines)


def test_lines_are_added_up_once_each(folder: Path) -> None:
    figures = Figures(folder)
    assert figures.read().disk_read_bytes == 0, "there is no file yet"
    _write(folder, _line(read_bytes=4096, read_count=1, execute_fails=1), _line(read_bytes=1))
    found = figures.read()
    assert figures.read() == found
    assert (found.disk_read_bytes, found.disk_reads, found.disk_failures) == (4097, 1, 1)
    assert (found.network_received_bytes, found.network_received_packets) == (2000, 4)
    assert (found.disk_throttled, found.network_throttled) == (0, 2)
    late = _line(write_bytes=7)
    _write(folder, late[:50])
    assert figures.read() == found, "a line that is not whole waits"
    _write(folder, late[50:])
    assert figures.read().disk_written_bytes == 7


def _read(figures: Figures) -> DeviceFigures:
    """Return the sums with all that was written: one call takes a part of it."""
    before = figures._at
    found = figures.read()
    return found if figures._at == before else _read(figures)


def test_the_file_stays_small_and_the_next_daemon_goes_on(folder: Path) -> None:
    figures, lines = Figures(folder), 3000
    _write(folder, _line(write_bytes=1))
    figures.tidy()
    assert not (folder / KEPT).exists(), "little is left as it is"
    _write(folder, *[_line(write_bytes=1)] * lines)
    assert (folder / "vm/metrics").stat().st_blocks * 512 > 256 << 10
    for _ in range(10):
        figures.tidy()
    assert (folder / "vm/metrics").stat().st_blocks * 512 <= 256 << 10
    assert _read(figures).disk_written_bytes == lines + 1
    _write(folder, _line(write_bytes=1))
    assert _read(Figures(folder)).disk_written_bytes == lines + 2
    _write(folder, *[_line(write_bytes=1)] * lines)
    assert _read(Figures(folder)).disk_written_bytes == 2 * lines + 2
    figures.forget()
    (folder / "vm/metrics").unlink()
    assert Figures(folder).read().disk_written_bytes == 0, "another machine begins anew"


@pytest.mark.parametrize(
    "line",
    [
        b"no json\n",
        b"[1, 2]\n",
        b'{"block": 7}\n',
        b"[" * 100_000 + b"\n",
        b"x" * 300_000 + b"\n",
        b'{"block": {"read_bytes": ' + b"9" * 5000 + b"}}\n",
        *(_line(read_bytes=value) for value in (-1, 1.5, True, None, "7", [7], {"a": 1}, 1 << 70)),
    ],
)
def test_what_is_no_such_line_adds_nothing(folder: Path, line: bytes) -> None:
    _write(folder, _line(read_bytes=5), line, _line(read_bytes=6))
    assert Figures(folder).read().disk_read_bytes == 11


def test_a_line_without_an_end_is_passed_over(folder: Path) -> None:
    figures = Figures(folder)
    _write(folder, _line(read_bytes=5), b"\0" * (9 << 20))
    assert _read(figures).disk_read_bytes == 5
    _write(folder, b"\n", _line(read_bytes=6))
    assert _read(figures).disk_read_bytes == 11


@pytest.mark.parametrize(
    "junk", [b"{}\n" * 100_000, b"\n" * 300_000, b"[" * (9 << 20), (b" " * 250_000 + b"\n") * 20]
)
def test_one_call_has_an_end_whatever_was_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, junk: bytes
) -> None:
    parsed: list[int] = []
    added = fc._new_in

    def counted(line: bytes) -> dict[str, int]:
        parsed.append(len(line))
        return added(line)

    monkeypatch.setattr(fc, "_new_in", counted)
    figures = Figures(folder)
    _write(folder, _line(read_bytes=5), junk)
    assert figures.read().disk_read_bytes == 5
    assert figures._at <= 1 << 20
    assert len(parsed) <= 500
    assert sum(parsed) <= 1 << 20


def test_who_would_wait_for_another_call_for_long_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fc, "_BUSY_S", 0.01)
    figures = Figures(folder)
    _write(folder, *[_line(read_bytes=5)] * 1000)
    with figures._lock, ThreadPoolExecutor(1) as other:
        with pytest.raises(VmmFailed, match="still being added up"):
            other.submit(figures.read).result(10)
        other.submit(figures.tidy).result(10)  # there is time
    assert _read(figures).disk_read_bytes == 5000


def test_what_lies_in_the_files_place_is_not_read(folder: Path) -> None:
    other = folder / "other"
    other.write_bytes(_line(read_bytes=5))
    (folder / "vm/metrics").symlink_to(other)
    assert Figures(folder).read().disk_read_bytes == 0
    (folder / "vm/metrics").unlink()
    os.mkfifo(folder / "vm/metrics")
    assert Figures(folder).read().disk_read_bytes == 0


@pytest.mark.parametrize("kept", [b"", b"[]", b'{"at": 5}', b'{"at": "x", "sums": {}}'])
def test_sums_that_are_damaged_begin_anew(folder: Path, kept: bytes) -> None:
    (folder / KEPT).write_bytes(kept)
    _write(folder, _line(read_bytes=5))
    assert Figures(folder).read().disk_read_bytes == 5


def test_a_qemus_disks_are_summed_up() -> None:
    def device(qdev: str, **stats: object) -> dict[str, object]:
        return {"qdev": qdev, "node-name": "x", "stats": stats}

    answer = [
        device("/machine/disk0/virtio-backend", rd_bytes=10, rd_operations=2, wr_bytes=3),
        device("vol1", rd_bytes=5, wr_operations=4, failed_wr_operations=1, rd_operations=-9),
        {"node-name": "a layer below", "stats": {"rd_bytes": 100}},
        "what",
    ]
    none = dict.fromkeys(
        [name for name in DeviceFigures.__dataclass_fields__ if name.startswith("network")]
    )
    assert figures_of(answer) == DeviceFigures(
        disk_read_bytes=15,
        disk_written_bytes=3,
        disk_reads=2,
        disk_writes=4,
        disk_failures=1,
        disk_throttled=None,
        **none,  # type: ignore[arg-type]
    )
    assert figures_of({"no": "list"}).disk_read_bytes == 0
