"""Files: one suite for the real agent and the fake."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.guest.steps import names, slurp, stream, temporary
from torpor.errors import Conflict, InvalidRequest, NotFound
from torpor.guest.port import Guest

pytestmark = pytest.mark.anyio

ODD_NAMES = [
    "plain",
    " leading and trailing ",
    "new\nline",
    "ünï☃",
    "-rf",
    "it's \"odd\\",
    "~}^]",
    "x" * 255,
    os.fsdecode(b"\xff\xfe\x80bad-utf8"),
]


async def test_a_file_goes_there_and_back(guest: Guest, home: Path) -> None:
    content = bytes(range(256)) * 3000
    path = f"{home}/deep/er/file.bin"
    pieces = [content[at : at + 100_001] for at in range(0, len(content), 100_001)]
    info = await guest.write(path, stream(pieces))
    assert (info.kind, info.size_bytes, info.mode, info.name) == (
        "file",
        len(content),
        0o644,
        "file.bin",
    )
    assert await slurp(guest.read(path)) == content
    assert await slurp(guest.read(path, offset=1000, limit_bytes=70_000)) == content[1000:71_000]
    assert await slurp(guest.read(path, offset=len(content) + 5)) == b""
    assert await slurp(guest.read(path, limit_bytes=0)) == b""
    assert (home / "deep/er").stat().st_mode & 0o777 == 0o755


async def test_an_empty_file(guest: Guest, home: Path) -> None:
    assert (await guest.write(f"{home}/empty", stream([]))).size_bytes == 0
    assert await slurp(guest.read(f"{home}/empty")) == b""


async def test_reading_comes_in_bounded_chunks(guest: Guest, home: Path) -> None:
    (home / "f").write_bytes(bytes(1 << 20))
    assert max([len(chunk) async for chunk in guest.read(f"{home}/f")]) <= 64 << 10


async def test_odd_names(guest: Guest, home: Path) -> None:
    for name in ODD_NAMES:
        path = f"{home}/{name}"
        await guest.write(path, stream([b"odd"]))
        assert (home / name).read_bytes() == b"odd"
        assert [info.name for info in await guest.list_dir(str(home))] == [name]
        assert (await guest.stat(path)).path == path
        assert await slurp(guest.read(path)) == b"odd"
        assert [info.path async for info in guest.walk(str(home))] == [path]
        await guest.rename(path, f"{home}/new")
        await guest.remove(f"{home}/new")
        assert names(home) == []


async def test_replacing_keeps_mode_and_appending_adds(guest: Guest, home: Path) -> None:
    (home / "f").write_text("old")
    (home / "f").chmod(0o600)
    assert (await guest.write(f"{home}/f", stream([b"new"]))).mode == 0o600
    assert (await guest.write(f"{home}/f", stream([b"er", b"!"]), append=True)).size_bytes == 6
    assert (home / "f").read_text() == "newer!"
    assert (await guest.write(f"{home}/f", stream([b"x"]), mode=0o4755)).mode == 0o4755
    assert (await guest.write(f"{home}/g", stream([b"x"]), append=True, mode=0o640)).mode == 0o640
    assert (await guest.write(f"{home}/h", stream([b"x"]), append=True)).mode == 0o644


async def test_a_failing_upload_leaves_the_old_file(guest: Guest, home: Path) -> None:
    (home / "f").write_text("old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"new" * 100_000
        raise ZeroDivisionError

    for append in (False, True):
        with pytest.raises(ZeroDivisionError):
            await guest.write(f"{home}/f", broken(), append=append)
    await guest.ping()
    assert names(home) == ["f"]
    assert (home / "f").read_text() == "old"


async def test_a_symlink_is_written_through_and_described_as_itself(
    guest: Guest, home: Path
) -> None:
    (home / "real").write_text("old")
    (home / "link").symlink_to("real")
    await guest.write(f"{home}/link", stream([b"new"]))
    assert (home / "real").read_text() == "new"
    info = await guest.stat(f"{home}/link")
    assert (info.kind, info.target) == ("symlink", "real")
    await guest.remove(f"{home}/link")
    assert (home / "real").exists()


async def test_folders(guest: Guest, home: Path) -> None:
    assert (await guest.mkdir(f"{home}/a/b/c", mode=0o700)).mode == 0o700
    await guest.mkdir(f"{home}/a/b/c", mode=0o700)
    with pytest.raises(Conflict):
        await guest.mkdir(f"{home}/a", parents=False)
    with pytest.raises(NotFound):
        await guest.mkdir(f"{home}/x/y", parents=False)
    with pytest.raises(Conflict):
        await guest.remove(f"{home}/a")
    await guest.remove(f"{home}/a", recursive=True)
    assert not (home / "a").exists()


async def test_list_and_walk(guest: Guest, home: Path) -> None:
    for name in ("b/two", "b/a/deep", "a", "c"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "loop").symlink_to(home)
    listed = await guest.list_dir(str(home))
    assert [(i.name, i.kind) for i in listed] == [
        ("a", "file"),
        ("b", "dir"),
        ("c", "file"),
        ("loop", "symlink"),
    ]
    walked = [info.path.removeprefix(f"{home}/") async for info in guest.walk(str(home))]
    assert sorted(walked) == ["a", "b", "b/a", "b/a/deep", "b/two", "c", "loop"]
    assert walked.index("b") < walked.index("b/a") < walked.index("b/a/deep")
    shallow = [info.name async for info in guest.walk(str(home), max_depth=1)]
    assert sorted(shallow) == ["a", "b", "c", "loop"]


async def test_a_large_folder(guest: Guest, home: Path) -> None:
    for i in range(1000):
        (home / f"file-with-a-rather-long-name-{i:05}").touch()
    assert len(await guest.list_dir(str(home))) == 1000
    assert len([info async for info in guest.walk(str(home))]) == 1000


async def test_what_is_not_there(guest: Guest, home: Path) -> None:
    nowhere = f"{home}/no/where"
    for call in (
        guest.stat(nowhere),
        guest.list_dir(nowhere),
        guest.remove(nowhere),
        guest.rename(nowhere, f"{home}/x"),
        slurp(guest.read(nowhere)),
        slurp(guest.pack(nowhere)),
    ):
        with pytest.raises(NotFound):
            await call


async def test_what_cannot_be(guest: Guest, home: Path) -> None:
    (home / "file").touch()
    os.mkfifo(home / "fifo")
    for call in (
        guest.stat("relative"),
        guest.stat(f"{home}/nul\0"),
        slurp(guest.read(str(home))),
        slurp(guest.read(f"{home}/fifo")),
        guest.write(str(home), stream([b"x"])),
        guest.write(f"{home}/fifo", stream([b"x"])),
        guest.list_dir(f"{home}/file"),
    ):
        with pytest.raises(InvalidRequest):
            await call


def tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    if kind in (tarfile.DIRTYPE, tarfile.LNKTYPE):
        info.mode = 0o755
    return info


async def test_a_tree_goes_there_and_back(guest: Guest, home: Path) -> None:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        await there_and_back(guest, home / str(form), form)


async def there_and_back(guest: Guest, home: Path, form: int) -> None:
    long = "/".join(["folder-" + "n" * 20] * 3)
    script = member("./bin/run.sh")
    script.mode = 0o755
    data = tar(
        (member("bin", tarfile.DIRTYPE), b""),
        (script, b"#!/bin/sh\n"),
        (member(f"{long}/file"), bytes(range(256)) * 1000),
        (member("link", tarfile.SYMTYPE, "bin/run.sh"), b""),
        (member("hard", tarfile.LNKTYPE, "bin/run.sh"), b""),
        (member("abs", tarfile.SYMTYPE, "/etc/hostname"), b""),
        (member("empty"), b""),
        form=form,
    )
    pieces = [data[at : at + 7001] for at in range(0, len(data), 7001)]
    assert await guest.unpack(f"{home}/new/tree", stream(pieces)) == 7
    root = home / "new/tree"
    assert (root / "bin/run.sh").stat().st_mode & 0o777 == 0o755
    assert (root / long / "file").read_bytes() == bytes(range(256)) * 1000
    assert (root / "link").readlink() == Path("bin/run.sh")
    assert (root / "hard").read_bytes() == b"#!/bin/sh\n"
    packed = await slurp(guest.pack(str(root)))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = set(archive.getnames())
        assert {"bin", "bin/run.sh", "link", "abs", "hard", "empty", f"{long}/file"} <= names
        file = archive.extractfile(f"{long}/file")
        assert file
        assert file.read() == bytes(range(256)) * 1000
    assert await guest.unpack(f"{home}/copy", stream([packed])) == len(names)
    assert (home / "copy/bin/run.sh").read_bytes() == b"#!/bin/sh\n"


async def test_pack_of_one_file(guest: Guest, home: Path) -> None:
    (home / "one").write_text("content")
    with tarfile.open(fileobj=io.BytesIO(await slurp(guest.pack(f"{home}/one")))) as archive:
        assert archive.getnames() == ["one"]


async def test_unpacking_over_what_is_there(guest: Guest, home: Path) -> None:
    (home / "d").mkdir()
    (home / "d/f").write_text("old")
    (home / "outside").write_text("safe")
    (home / "d/link").symlink_to("../outside")
    data = tar(
        (member("d", tarfile.DIRTYPE), b""), (member("d/f"), b"new"), (member("d/link"), b"file")
    )
    await guest.unpack(str(home), stream([data]))
    assert (home / "d/f").read_text() == "new"
    assert (home / "d/link").read_text() == "file"
    assert (home / "outside").read_text() == "safe"


HOSTILE = {
    "absolute": [(member("/tmp/torpor-hostile"), b"x")],
    "parent": [(member("../hostile"), b"x")],
    "parent-inside": [(member("a/../../hostile"), b"x")],
    "through-symlink": [
        (member("door", tarfile.SYMTYPE, ".."), b""),
        (member("door/hostile"), b"x"),
    ],
    "through-two-symlinks": [
        (member("a", tarfile.DIRTYPE), b""),
        (member("a/door", tarfile.SYMTYPE, "../.."), b""),
        (member("b", tarfile.SYMTYPE, "a/door"), b""),
        (member("b/hostile"), b"x"),
    ],
    "folder-through-symlink": [
        (member("door", tarfile.SYMTYPE, ".."), b""),
        (member("door/hostile", tarfile.DIRTYPE), b""),
    ],
    "hardlink-out": [(member("h", tarfile.LNKTYPE, "../secret"), b"")],
    "device": [(member("null", tarfile.CHRTYPE), b"")],
    "fifo": [(member("fifo", tarfile.FIFOTYPE), b"")],
}


async def test_a_hostile_archive_lands_nowhere(guest: Guest, home: Path) -> None:
    for name, members in HOSTILE.items():
        place = home / name
        place.mkdir()
        (place / "secret").write_text("secret")
        data = tar((member("good"), b"good"), *members)
        with pytest.raises(InvalidRequest):
            await guest.unpack(f"{place}/in", stream([data]))
        assert names(place) == ["in", "secret"]
    assert names(home) == sorted(HOSTILE)
    assert "torpor-hostile" not in names(Path("/tmp"))
    assert temporary(home) == []


async def test_what_is_no_whole_archive_is_refused(guest: Guest, home: Path) -> None:
    for data in (b"no archive at all" * 100, b"", tar((member("x"), b"y"))[:700]):
        with pytest.raises(InvalidRequest):
            await guest.unpack(f"{home}/in", stream([data]))
    assert temporary(home) == []
