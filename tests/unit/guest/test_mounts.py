"""Which file systems are frozen, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.guest_kernel import mount_line
from torpor_guest import mounts
from torpor_guest.mounts import Volume, open_volume, volumes

GUEST = r"""
21 1 254:0 / / rw,noatime shared:1 - ext4 /dev/root rw
22 21 0:21 / /proc rw - proc proc rw
23 21 0:5 / /dev rw shared:2 - devtmpfs udev rw,size=1k
24 21 0:24 / /run rw - tmpfs tmpfs rw
25 21 254:16 / /data rw shared:3 master:1 - xfs /dev/vdb rw,attr2
26 25 254:0 /srv /data/a\040b rw - ext4 /dev/root rw
27 21 254:32 / /media ro - iso9660 /dev/vdc ro
28 21 0:40 / /overlay rw - overlay overlay rw,lowerdir=/a
29 21 0:41 /sub /pool rw - btrfs /dev/vdd rw,subvol=/sub
30 21 0:42 / /share rw - 9p /dev/share rw
31 21 254:16 / /readonly/view ro - xfs /dev/vdb rw,attr2
32 24 0:4 net:[4026531992] /run/netns/a rw - nsfs nsfs rw
33 21 7:0 / /image rw - ext4 /dev/loop0 rw
34 33 7:1 / /image/inner rw - ext4 /dev/loop1 rw
35 21 254:48 / /boot rw - vfat /dev/vde rw
"""


def test_disks_once_each_and_the_root_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_below", {(7, 0): (254, 0), (7, 1): (7, 0)}.get)
    found = volumes(GUEST)
    assert [volume.places[0] for volume in found] == [
        "/image/inner",  # in a file of /image, which is in a file of the root
        "/image",
        "/boot",
        "/pool",
        "/media",
        "/data",
        "/",
    ]
    root, data, media = found[-1], found[-2], found[-3]
    assert root == Volume((254, 0), "ext4", ("/", "/data/a b"), True)
    assert data.places == ("/data", "/readonly/view")
    assert data.is_writable, "a read-only view does not make it read-only"
    assert not media.is_writable


@given(st.text(alphabet="0179: -/rwext\\s,\n"))
def test_no_text_breaks_it(text: str) -> None:
    for volume in volumes(text):
        assert volume.places


def test_a_loop_of_loops_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_below", {(7, 0): (7, 0)}.get)
    assert len(volumes(GUEST)) == 7


def test_a_place_that_shows_another_file_system_is_passed_over(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    device = os.major(number), os.minor(number)
    kind = "ext4" if device[0] else "btrfs"
    fd, place = open_volume(Volume(device, kind, (f"{tmp_path}/gone", str(tmp_path)), True))
    os.close(fd)
    assert place == str(tmp_path)
    for places in (("/proc", "/nowhere"), ("/proc",)):
        with pytest.raises(FileNotFoundError):
            open_volume(Volume((254, 77), "ext4", places, True))


def test_a_pipe_at_the_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileNotFoundError):
        open_volume(Volume((254, 77), "ext4", (f"{tmp_path}/fifo",), True))


def test_the_fake_speaks_the_same_language() -> None:
    (found,) = volumes(mount_line("/"))
    assert found.places == ("/",)
    fd, _ = open_volume(found)
    os.close(fd)
