"""The floor's own parts, without a machine."""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
from pathlib import Path

import pytest

from torpor.bench.copying import copy_changed
from torpor.bench.figures import PausePoint
from torpor.bench.host import filesystem_of, is_busy
from torpor.bench.memory import pss_mib
from torpor.bench.qmp import Qmp
from torpor.errors import VmmFailed

PAGE = 4096


def test_the_changed_pages_of_a_private_mapping_are_copied_and_no_others(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"old." * (16 * PAGE // 4))
    with image.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 16 * PAGE, flags=mmap.MAP_PRIVATE, prot=3)
    try:
        for page in (2, 3, 9):
            memory[page * PAGE : page * PAGE + 3] = b"new"
        assert memory[5 * PAGE] == ord("o")  # read, not changed
        copied = copy_changed(os.getpid(), image, tmp_path / "out")
    finally:
        memory.close()
    assert copied.mib == 3 * PAGE / (1 << 20)
    out = (tmp_path / "out").read_bytes()
    assert [n for n in range(16) if out[n * PAGE : (n + 1) * PAGE].strip(b"\0")] == [2, 3, 9]
    assert out[9 * PAGE : 9 * PAGE + 4] == b"new."


def test_a_process_that_does_not_map_the_image_is_told(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(PAGE))
    with pytest.raises(OSError, match="0 times"):
        copy_changed(os.getpid(), image, tmp_path / "out")


_SMAPS = """\
7f0000000000-7f0020000000 rw-p 00000000 fe:00 4242 /home/images/snap_x.img
Size:             524288 kB
Pss:               20480 kB
Pss_Dirty:         10240 kB
7f0030000000-7f0030001000 rw-p 00000000 00:00 0
Pss:                1024 kB
7f0040000000-7f0050000000 rw-p 10000000 fe:00 4242 /home/images/snap_x.img
Pss:                 512 kB
"""


def test_pss_is_summed_over_all_or_over_one_file() -> None:
    assert pss_mib(_SMAPS) == 21.5
    assert pss_mib(_SMAPS, 4242) == 20.5
    assert pss_mib("0-7fff ---p 00000000 00:00 0    [rollup]\nRss: 9 kB\nPss:   2048 kB\n") == 2


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\n/dev/vdb /var/lib xfs rw 0 0\ntmpfs /var/lib\\040x tmpfs rw 0 0\n"
    )
    assert filesystem_of(Path("/var/lib/torpor"), mounts) == "xfs"
    assert filesystem_of(Path("/var/lib x/torpor"), mounts) == "tmpfs"
    assert filesystem_of(Path("/home"), mounts) == "ext4"


def test_a_machine_with_others_on_it_is_busy() -> None:
    assert is_busy(1.5, 2)
    assert not is_busy(0.5, 2)


def test_qmp_keeps_events_and_tells_refusals() -> None:
    gone = [{"event": "DEVICE_DELETED", "data": {"device": d, "path": "/"}} for d in ("a", "b")]
    ours, theirs = socket.socketpair()

    def qemu() -> None:
        with theirs, theirs.makefile("rwb") as lines:
            answers: list[list[dict[str, object]]] = [
                [{"return": {}}],
                [{"event": "STOP"}, {"return": {"status": "inmigrate"}}],
                [{"return": {"status": "paused"}}],
                [gone[0], {"return": {}}, gone[1]],
                [{"error": {"class": "GenericError", "desc": "no such thing"}}],
            ]
            lines.write(b'{"QMP": {}}\n')
            lines.flush()
            for answer in answers:
                lines.readline()
                lines.write(b"".join(json.dumps(one).encode() + b"\n" for one in answer))
                lines.flush()

    thread = threading.Thread(target=qemu)
    thread.start()
    qmp = Qmp(ours)
    qmp.wait_loaded()
    qmp.execute("device_del", id="a")
    qmp.wait_event("DEVICE_DELETED", device="a")  # told before the answer
    qmp.wait_event("DEVICE_DELETED", device="b")  # told after it
    with pytest.raises(VmmFailed, match="no such thing"):
        qmp.execute("cont")
    thread.join()
    with pytest.raises(VmmFailed, match="closed"):
        qmp.execute("cont")
    qmp.close()


def test_the_plot_is_drawn_both_ways(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from torpor.bench.plot import draw

    points = [PausePoint(8.0, 12.0, 9.0), PausePoint(64.0, 50.0, None)]
    files = draw(points, tmp_path / "plots", emulated=True)
    assert [path.name for path in files] == ["pause.png", "pause.svg"]
    assert all(path.stat().st_size > 1000 for path in files)
