"""/v1/sandboxes/{id}/fs…"""

from __future__ import annotations

import io
import json
import tarfile
import threading
import tracemalloc
from collections.abc import Iterator

import httpx
import pytest

from tests.contract.api.conftest import Rest
from tests.fakes.serving import ServerThread
from torpor.server.wire_files import FileListWire, FileWire, UnpackedWire

ODD = "/workspace/a%80b%20%2B%26%3D%25%23%C3%A9%0A"
"""A path with a byte that is not UTF-8, a space, a newline and what means something in URLs."""
ODD_NAME = "a\udc80b +&=%#é\n"


@pytest.fixture
def fs(rest: Rest) -> str:
    return f"/v1/sandboxes/{rest.create()}/fs"


def test_write_and_read(rest: Rest, fs: str) -> None:
    data = bytes(range(256)) * 1000
    info = rest.ok("PUT", f"{fs}?path=/workspace/new/x.bin&mode=0600&user=root", content=data)
    FileWire.model_validate(info)
    assert (info["name"], info["size"], info["size_bytes"]) == ("x.bin", len(data), len(data))
    assert (info["mode"], info["user"], info["is_dir"]) == ("0600", "root", False)
    reply = rest.http.get(f"{fs}?path=/workspace/new/x.bin")
    assert reply.content == data
    assert reply.headers["content-type"] == "application/octet-stream"
    assert rest.http.get(f"{fs}?path=/workspace/new/x.bin&offset=10&limit=5").content == data[10:15]
    rest.ok("PUT", f"{fs}?path=/workspace/new/x.bin&append=true", content=b"end")
    assert rest.http.get(f"{fs}?path=/workspace/new/x.bin").content == data + b"end"
    rest.ok("PUT", f"{fs}?path=/workspace/empty", content=b"")
    assert rest.http.get(f"{fs}?path=/workspace/empty").content == b""


def test_paths_of_any_bytes(rest: Rest, fs: str) -> None:
    info = rest.ok("PUT", f"{fs}?path={ODD}", content=b"odd")
    assert info["name"] == ODD_NAME
    assert rest.http.get(f"{fs}?path={ODD}").content == b"odd"
    assert rest.ok("GET", f"{fs}/stat?path={ODD}")["path"] == f"/workspace/{ODD_NAME}"
    assert ODD_NAME in [e["name"] for e in rest.ok("GET", f"{fs}/dir?path=/workspace")["entries"]]
    rename = json.dumps({"source": f"/workspace/{ODD_NAME}", "target": "/workspace/\udcffz"})
    headers = {"content-type": "application/json"}
    info = rest.ok("POST", f"{fs}/rename", content=rename, headers=headers)
    assert info["name"] == "\udcffz"
    lines = rest.http.get(f"{fs}/walk?path=/workspace").text.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["\udcffz"]
    rest.ok("DELETE", f"{fs}?path=/workspace/%FFz", status=204)


@pytest.mark.parametrize("path", ["relative", "", "/a%00b", "/" + "x" * 4096])
def test_paths_that_cannot_be(rest: Rest, fs: str, path: str) -> None:
    for what in ("", "/dir", "/stat", "/walk", "/archive"):
        rest.fails("GET", f"{fs}{what}?path={path}", 400, "request.invalid")
    rest.fails("PUT", f"{fs}?path={path}", 400, "request.invalid", content=b"x")
    rest.fails("DELETE", f"{fs}?path={path}", 400, "request.invalid")


def test_a_path_has_to_be_given(rest: Rest, fs: str) -> None:
    rest.fails("GET", fs, 400, "request.invalid")


@pytest.mark.parametrize("mode", ["8", "rw", "", "77777", "-1"])
def test_modes_that_are_none(rest: Rest, fs: str, mode: str) -> None:
    rest.fails("PUT", f"{fs}?path=/x&mode={mode}", 400, "request.invalid", content=b"")
    rest.fails("POST", f"{fs}/mkdir", 400, "request.invalid", json={"path": "/d", "mode": mode})


def test_folders(rest: Rest, fs: str) -> None:
    info = rest.ok("POST", f"{fs}/mkdir", json={"path": "/a/b", "mode": "0700"}, status=201)
    assert (info["kind"], info["is_dir"], info["mode"]) == ("dir", True, "0700")
    rest.ok("POST", f"{fs}/mkdir", json={"path": "/a/b"}, status=201)
    rest.fails(
        "POST", f"{fs}/mkdir", 409, "object.conflict", json={"path": "/a/b", "parents": False}
    )
    rest.ok("PUT", f"{fs}?path=/a/b/file", content=b"x")
    entries = rest.ok("GET", f"{fs}/dir?path=/a")
    FileListWire.model_validate(entries)
    assert [e["path"] for e in entries["entries"]] == ["/a/b"]
    assert isinstance(entries["entries"][0]["mtime"], int)
    walked = rest.http.get(f"{fs}/walk?path=/a").text.splitlines()
    assert [json.loads(line)["path"] for line in walked] == ["/a/b", "/a/b/file"]
    assert len(rest.http.get(f"{fs}/walk?path=/a&max_depth=1").text.splitlines()) == 1
    rest.fails("DELETE", f"{fs}?path=/a", 409, "object.conflict")
    rest.ok("DELETE", f"{fs}?path=/a&recursive=true", status=204)
    rest.fails("GET", f"{fs}/stat?path=/a", 404, "object.not_found")
    rest.fails("GET", f"{fs}/dir?path=/a", 404, "object.not_found")
    rest.fails("GET", f"{fs}?path=/a/b/file", 404, "object.not_found")
    rest.fails("DELETE", f"{fs}?path=/a", 404, "object.not_found")


def test_archives(rest: Rest, fs: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("sub/file")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))
    reply = rest.ok("PUT", f"{fs}/archive?path=/target", content=buffer.getvalue())
    assert UnpackedWire.model_validate(reply).entries == 1
    packed = rest.http.get(f"{fs}/archive?path=/target")
    assert packed.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as tar:
        assert tar.getnames() == ["sub", "sub/file"]


def test_large_files_pass_in_bounded_memory(rest: Rest, fs: str, server: ServerThread) -> None:
    size = 64 << 20
    block = b"\0" * (1 << 16)

    def content() -> Iterator[bytes]:
        for _ in range(size // len(block)):
            yield block

    tracemalloc.start()
    try:
        info = rest.ok("PUT", f"{fs}?path=/big", content=content())
        assert info["size_bytes"] == size
        got = 0
        with rest.http.stream("GET", f"{fs}?path=/big") as reply:
            for chunk in reply.iter_raw():
                got += len(chunk)
        assert got == size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20, f"{peak >> 20} MiB"  # the fake itself keeps up to 8


def test_a_client_that_hangs_up_leaves_the_old_file(
    rest: Rest, fs: str, server: ServerThread
) -> None:
    rest.ok("PUT", f"{fs}?path=/keep", content=b"old")
    gone = threading.Event()

    def content() -> Iterator[bytes]:
        yield b"new" * 10000
        gone.set()
        raise KeyError("the client dies")

    with pytest.raises(KeyError):
        rest.http.put(f"{fs}?path=/keep", content=content())
    assert gone.is_set()
    assert rest.http.get(f"{fs}?path=/keep").content == b"old"


def test_a_read_that_fails_on_the_way_is_cut(rest: Rest, fs: str, server: ServerThread) -> None:
    rest.ok("PUT", f"{fs}?path=/bad", content=b"x" * 500000)
    server.guest(fs.split("/")[3]).files.cut_reads_after = 200000
    with pytest.raises(httpx.RemoteProtocolError):
        rest.http.get(f"{fs}?path=/bad")
    server.guest(fs.split("/")[3]).files.cut_reads_after = 0
    rest.fails("GET", f"{fs}?path=/bad", 502, "guest.failed")


def test_a_stalled_download_holds_up_nobody(rest: Rest, fs: str) -> None:
    rest.ok("PUT", f"{fs}?path=/big", content=b"x" * (8 << 20))
    with rest.http.stream("GET", f"{fs}?path=/big") as stalled:
        chunks = stalled.iter_raw()
        next(chunks)
        assert len(rest.http.get(f"{fs}?path=/big").content) == 8 << 20
