"""A release is fetched, checked and put in place whole, or nothing is changed."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from torpor.errors import (
    Conflict,
    DataDamaged,
    HostNotReady,
    InsufficientResources,
    NotAllowed,
)
from torpor.hostsetup import install as room
from torpor.hostsetup.install import install, look_at, version_of, why_unused
from torpor.hostsetup.release import PINNED, Release


def _program(name: str, version: str = "9.8.7") -> bytes:
    return f"#!/bin/sh\necho '{name} v{version}'\necho\necho more\n".encode()


def _archive(version: str = "9.8.7", *, jailer: bool = True) -> bytes:
    buffer = io.BytesIO()
    release = Release(version, "", "")
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        names = ("firecracker", "jailer") if jailer else ("firecracker",)
        for name in names:
            info = tarfile.TarInfo(release.member(name))
            content = _program(name.capitalize(), version)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class _Site(BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/moved.tgz":
            self.send_response(302)
            self.send_header("Location", "/release.tgz")
            self.end_headers()
            return
        found = self.files.get(self.path)
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(found or b"")))
        self.end_headers()
        self.wfile.write(found or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    """A server of releases on this host."""
    _Site.files, _Site.asked = {"/release.tgz": _archive()}, []
    server = HTTPServer(("127.0.0.1", 0), _Site)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10)
    server.server_close()


def _release(site: str, path: str = "/release.tgz", data: bytes | None = None) -> Release:
    digest = hashlib.sha256(data if data is not None else _Site.files["/release.tgz"]).hexdigest()
    return Release("9.8.7", f"{site}{path}", digest)


def test_programs_are_put_in_place_and_stay(site: str, tmp_path: Path) -> None:
    folder = tmp_path / "new/bin"
    done = asyncio.run(install(folder, release=_release(site, "/moved.tgz")))
    assert done.changed
    assert done.version == "9.8.7"
    assert (folder / "firecracker").read_bytes() == _program("Firecracker")
    assert (folder / "jailer").read_bytes() == _program("Jailer")
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o755}
    assert len(list(folder.iterdir())) == 2, "no temporary file is left"
    asked = len(_Site.asked)
    assert not asyncio.run(install(folder, release=_release(site))).changed
    assert len(_Site.asked) == asked, "nothing is fetched again"


def test_a_folder_may_be_relative(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = asyncio.run(install(Path(), release=_release(site)))
    assert done.programs == (tmp_path / "jailer", tmp_path / "firecracker")


def test_a_folder_in_the_place_of_a_program_stays(site: str, tmp_path: Path) -> None:
    (tmp_path / "jailer").mkdir()
    with pytest.raises(Conflict, match="is a folder"):
        asyncio.run(install(tmp_path, release=_release(site), force=True))
    assert [path.name for path in tmp_path.iterdir()] == ["jailer"]
    assert not _Site.asked


def test_a_jailer_is_no_firecracker(site: str, tmp_path: Path) -> None:
    (tmp_path / "firecracker").write_bytes(_program("Jailer"))
    (tmp_path / "jailer").write_bytes(_program("Jailer"))
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    with pytest.raises(Conflict, match="no program that says its version"):
        asyncio.run(install(tmp_path, release=_release(site)))


def test_a_full_disk_leaves_nothing(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, []

    def full_at_last(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full_at_last)
    with pytest.raises(InsufficientResources, match="no room for jailer and firecracker"):
        asyncio.run(install(tmp_path, release=_release(site)))
    assert len(calls) == 2
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_to_the_folder_for_temporary_files(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert asyncio.run(install(tmp_path / "bin", release=_release(site))).changed


def test_what_is_not_the_release_is_refused(site: str, tmp_path: Path) -> None:
    release = _release(site, data=b"another")
    with pytest.raises(DataDamaged, match=release.sha256):
        asyncio.run(install(tmp_path, release=release))
    assert not list(tmp_path.iterdir())


def test_an_archive_without_the_jailer_changes_nothing(site: str, tmp_path: Path) -> None:
    _Site.files["/release.tgz"] = _archive(jailer=False)
    with pytest.raises(DataDamaged, match="jailer"):
        asyncio.run(install(tmp_path, release=_release(site)))
    assert not list(tmp_path.iterdir())


def test_what_is_no_archive_is_told(site: str, tmp_path: Path) -> None:
    _Site.files["/release.tgz"] = b"<html>sign in</html>"
    with pytest.raises(DataDamaged, match="not the archive"):
        asyncio.run(install(tmp_path, release=_release(site)))


def test_another_version_is_replaced_only_when_asked(site: str, tmp_path: Path) -> None:
    (tmp_path / "firecracker").write_bytes(_program("Firecracker", "1.0.0"))
    (tmp_path / "firecracker").chmod(0o755)
    with pytest.raises(Conflict, match=r"is 1\.0\.0; .*9\.8\.7 is wanted|1\.0\.0") as caught:
        asyncio.run(install(tmp_path, release=_release(site)))
    assert "--force" in str(caught.value.hint)
    assert not _Site.asked
    assert asyncio.run(install(tmp_path, release=_release(site), force=True)).changed
    assert asyncio.run(version_of(tmp_path / "firecracker")) == "9.8.7"


def test_no_such_release_and_no_network_are_told(site: str, tmp_path: Path) -> None:
    with pytest.raises(HostNotReady, match="404"):
        asyncio.run(install(tmp_path, release=_release(site, "/nothing.tgz")))
    with pytest.raises(HostNotReady, match="cannot be fetched") as caught:
        asyncio.run(
            install(tmp_path / "new", release=Release("9.8.7", "http://127.0.0.1:9/x", "0" * 64))
        )
    assert "TORPOR_FIRECRACKER" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("proxy", ["foo://x", "socks5://127.0.0.1:9", "http://127.0.0.1:nine"])
def test_a_proxy_that_cannot_be_is_told(
    proxy: str, site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(HostNotReady, match="cannot be fetched"):
        asyncio.run(install(tmp_path, release=_release(site)))


def test_an_archive_that_does_not_end_is_cut(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_LIMIT_BYTES", 100)
    with pytest.raises(room.LimitExceeded):
        asyncio.run(install(tmp_path, release=_release(site)))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_others_is_told(site: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(NotAllowed, match="ours to write"):
        asyncio.run(install(tmp_path, release=_release(site)))


def test_a_folder_that_cannot_be_is_told(site: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotAllowed, match="no folder"):
        asyncio.run(install(tmp_path / "file/bin", release=_release(site)))


def test_a_program_that_is_named_is_looked_at(tmp_path: Path) -> None:
    program = tmp_path / "fc"
    program.write_bytes(_program("Firecracker", "1.13.0"))
    program.chmod(0o755)
    assert asyncio.run(look_at(program)).version == "1.13.0"
    with pytest.raises(HostNotReady, match="does not say"):
        asyncio.run(look_at(Path("/bin/true")))
    program.write_bytes(_program("Jailer", "1.13.0"))
    with pytest.raises(HostNotReady, match="does not say"):
        asyncio.run(look_at(program))
    program.write_bytes(_program("Firecracker", "1.7.0"))
    with pytest.raises(HostNotReady, match=r"version 1\.7\.0; 1\.12 or newer") as caught:
        asyncio.run(look_at(program))
    assert caught.value.hint


def test_a_program_that_is_not_found_first_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first/firecracker", tmp_path / "second/firecracker"
    for path in (first, second):
        path.parent.mkdir()
        path.write_bytes(_program("Firecracker"))
        path.chmod(0o755)
    monkeypatch.delenv("TORPOR_FIRECRACKER", raising=False)
    monkeypatch.setenv("PATH", f"{first.parent}:{second.parent}")
    assert why_unused(first) is None
    assert why_unused(second) == f"{first} is found before it"
    monkeypatch.setenv("TORPOR_FIRECRACKER", str(first))
    assert why_unused(second) == f"TORPOR_FIRECRACKER names {first}"
    monkeypatch.delenv("TORPOR_FIRECRACKER")
    first.unlink()
    first.symlink_to(second)
    assert why_unused(second) is None
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert why_unused(second) == f"{second.parent} is not on PATH"


def test_the_pinned_release_is_a_whole_one() -> None:
    assert f"/v{PINNED.version}/firecracker-v{PINNED.version}-x86_64.tgz" in PINNED.url
    assert PINNED.url.startswith("https://github.com/firecracker-microvm/firecracker/")
    assert len(bytes.fromhex(PINNED.sha256)) == 32
