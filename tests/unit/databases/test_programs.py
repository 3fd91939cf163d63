"""The programs of a database's machine, run here: the archive of the log, and what finds it again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torpor.templates import recipe

PROGRAMS = recipe.SHIPPED / "postgres" / "programs"
ONE, TWO, THREE = (f"00000001000000000000000{n}" for n in (1, 2, 3))


class Place:
    """A machine's volume in a folder, with a size of our choice."""

    def __init__(self, folder: Path) -> None:
        self.volume = folder / "postgres"
        self.source = folder / "source"
        self.wal = self.volume / "data" / "pg_wal"
        self.archived = self.volume / "archive"
        for made in (self.wal, self.archived, self.source / "archive", self.source / "data/pg_wal"):
            made.mkdir(parents=True)
        self.tools = folder / "tools"
        self.tools.mkdir()
        self.disk(size_kib=1 << 20, left_kib=1 << 19)

    def disk(self, *, size_kib: int, left_kib: int) -> None:
        """Let `stat -f` say that."""
        program = self.tools / "stat"
        program.write_text(f"#!/bin/sh\necho {size_kib // 4} {left_kib // 4} 4096\n")
        program.chmod(0o755)

    def run(self, name: str, *args: str) -> subprocess.CompletedProcess[str]:
        text = (PROGRAMS / name).read_text()
        text = text.replace("/srv/postgres", str(self.volume)).replace(
            "/srv/source", str(self.source)
        )
        path = f"{self.tools}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "-c", text, name, *args],
            capture_output=True,
            text=True,
            env={"PATH": path},
            check=False,
            timeout=20,
        )

    def segment(self, name: str, byte: bytes = b"x", *, mib: int = 1) -> str:
        path = self.wal / name
        path.write_bytes(byte * (mib << 20))
        return str(path)

    def archive(self, name: str, byte: bytes = b"x", *, mib: int = 1) -> int:
        return self.run("archive", self.segment(name, byte, mib=mib), name).returncode

    @property
    def kept(self) -> list[str]:
        return sorted(path.name for path in self.archived.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_segment_is_kept_whole_once_and_never_replaced(place: Place) -> None:
    assert place.archive(ONE) == 0
    assert (place.archived / ONE).read_bytes() == b"x" * (1 << 20)
    assert place.archive(ONE) == 0, "the same again is no failure"
    assert place.archive(ONE, b"y") == 1
    assert (place.archived / ONE).read_bytes()[:1] == b"x"
    assert place.kept == [ONE]
    assert place.run("archive", str(place.wal / "none"), TWO).returncode != 0
    assert TWO not in place.kept


def test_zeros_of_a_segment_that_was_ended_early_take_no_room(place: Place) -> None:
    assert place.archive(ONE, b"\0", mib=4) == 0
    found = (place.archived / ONE).stat()
    assert found.st_size == 4 << 20
    assert found.st_blocks * 512 < 1 << 20


def test_the_oldest_make_room_when_the_archive_has_its_share(place: Place) -> None:
    assert [place.archive(name, mib=2) for name in (ONE, TWO)] == [0, 0]
    place.disk(size_kib=10 << 10, left_kib=4 << 10)  # a quarter is 2.5 MiB; 4 are there
    assert place.archive(THREE, mib=2) == 0
    assert place.kept == [TWO, THREE]


def test_the_archive_gives_way_to_the_data(place: Place) -> None:
    assert [place.archive(name) for name in (ONE, TWO)] == [0, 0]
    place.disk(size_kib=64 << 10, left_kib=3 << 10)  # under a sixteenth is left
    assert place.archive(THREE) == 0
    assert place.kept == [TWO, THREE]


def test_the_log_is_found_where_it_is_and_its_end_is_told(place: Place, tmp_path: Path) -> None:
    (place.source / "archive" / ONE).write_bytes(b"archived")
    (place.source / "data/pg_wal" / ONE).write_bytes(b"not this")
    (place.source / "data/pg_wal" / TWO).write_bytes(b"not archived yet")
    target = tmp_path / "RECOVERYXLOG"
    for name, content in ((ONE, b"archived"), (TWO, b"not archived yet")):
        assert place.run("fetch", name, str(target)).returncode == 0
        assert target.read_bytes() == content
    assert place.run("fetch", THREE, str(target)).returncode == 1


def test_all_programs_are_in_the_recipe_and_can_be_run() -> None:
    found = recipe.load(recipe.find("postgres"))
    placed = {
        f.target.rpartition("/")[2]: f.mode for f in found.files if "/lib/torpor/" in f.target
    }
    assert placed == {path.name: 0o755 for path in PROGRAMS.iterdir()}
    for path in PROGRAMS.iterdir():
        checked = subprocess.run(["sh", "-n", str(path)], check=False, timeout=20)
        assert checked.returncode == 0, path.name
