"""Which mirror is taken from what a host may have in /etc/apt."""

from __future__ import annotations

from pathlib import Path

import pytest

from torpor.errors import InvalidRequest
from torpor.templates import mirror

DEB822 = """
Types: deb
# http://snapshot.example/archive
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
THIRD = "deb [arch=amd64 signed-by=/etc/apt/keyrings/x.gpg] https://third.example/debian bookworm main\n"


def apt(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        stem, _, kind = name.rpartition("_")
        target = (
            tmp_path / "sources.list"
            if stem == "main"
            else tmp_path / f"sources.list.d/{stem}.{kind}"
        )
        target.write_text(text)
    return tmp_path


def test_deb822(tmp_path: Path) -> None:
    found = mirror.choose(apt(tmp_path, debian_sources=DEB822, third_list=THIRD))
    assert found.main == "http://mirror.example/debian"
    assert found.security == "http://mirror.example/debian-security"


def test_one_line(tmp_path: Path) -> None:
    text = (
        "# deb http://off.example/debian trixie main\n"
        "deb-src http://src.example/debian trixie main\n"
        "deb [ signed-by=/usr/share/keyrings/debian-archive-keyring.pgp ] https://m.example/debian trixie main contrib # ours\n"
    )
    found = mirror.choose(apt(tmp_path, main_list=text))
    assert (found.main, found.security) == ("https://m.example/debian", None)


@pytest.mark.parametrize(
    "text",
    [
        THIRD,
        "deb cdrom:[Debian]/ trixie main\n",
        "deb http://archive.ubuntu.example/ubuntu noble main\n",
        "deb http://pg.example/apt bookworm-pgdg main\n",
        "deb http://docker.example/linux/debian bookworm stable\n",
    ],
)
def test_what_is_not_debians_is_not_taken(tmp_path: Path, text: str) -> None:
    found = mirror.choose(apt(tmp_path, x_list=text))
    assert (found.main, found.security) == (mirror.DEFAULT, mirror.DEFAULT_SECURITY)


def test_disabled_and_other_files_are_not_read(tmp_path: Path) -> None:
    off = DEB822.replace("Types: deb\n", "Enabled: no\nTypes: deb\n").replace(
        "deb deb-src", "deb-src"
    )
    found = mirror.choose(apt(tmp_path, a_sources=off, b_disabled=DEB822))
    assert found.main == mirror.DEFAULT


def test_mirror_list_file(tmp_path: Path) -> None:
    listed = tmp_path / "debian.list"
    listed.write_text("https://first.example/debian\nhttps://second.example/debian\n")
    text = DEB822.replace("http://mirror.example/debian/", f"mirror+file://{listed}")
    assert mirror.choose(apt(tmp_path, d_sources=text)).main == "https://first.example/debian"


def test_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_DEBIAN_MIRROR", "http://own.example/debian/")
    found = mirror.choose(apt(tmp_path, d_sources=DEB822))
    assert (found.main, found.security) == ("http://own.example/debian", None)
    monkeypatch.setenv("TORPOR_DEBIAN_MIRROR", "own.example")
    with pytest.raises(InvalidRequest, match="wanted a URL"):
        mirror.choose(tmp_path)


@pytest.mark.parametrize(
    "main",
    ["http://localhost:3142/debian", "http://127.0.0.1/d", "file:/srv/d", "http://u:p@m.example/d"],
)
def test_guest_gets_no_mirror_it_cannot_or_must_not_use(main: str) -> None:
    found = mirror.Mirror(main, None, "")
    assert found.for_guest() == (mirror.DEFAULT, mirror.DEFAULT_SECURITY)
    assert ":p@" not in found.shown


def test_lines_of_a_build() -> None:
    found = mirror.Mirror("http://m.example/debian", "http://m.example/sec", "")
    lines = found.lines("trixie", Path("/k.gpg"))
    assert lines == [
        "deb [signed-by=/k.gpg] http://m.example/debian trixie main",
        "deb [signed-by=/k.gpg] http://m.example/debian trixie-updates main",
        "deb [signed-by=/k.gpg] http://m.example/sec trixie-security main",
    ]
    assert len(found.lines("sid", Path("/k.gpg"))) == 1
