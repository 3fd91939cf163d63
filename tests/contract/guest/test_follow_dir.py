"""What happens in a folder is told as it happens: by the real agent, on a real inotify."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.contract.guest.agent import Agent, eventually
from tests.contract.guest.steps import stream
from torpor.errors import InvalidRequest, LimitExceeded, NotFound
from torpor.guest.client import GuestClient
from torpor.model_file_events import FileEvent, FileEventType
from torpor_guest import follow_dir

pytestmark = pytest.mark.anyio

Told = tuple[str, str]


async def until(events: AsyncIterator[FileEvent], last: Told) -> list[Told]:
    """Return what is told up to `last`."""
    found: list[Told] = []
    async with asyncio.timeout(20):
        async for event in events:
            told = (event.name, str(event.type))
            if found[-1:] != [told]:  # how many writes in a row are one is the kernel's business
                found.append(told)
            if told == last:
                return found
    raise AssertionError(f"it ended with {found}")


async def test_what_happens_in_a_folder(client: GuestClient, home: Path) -> None:
    (home / "old").write_text("x")
    odd = os.fsdecode(b"odd \n\xff")
    async with client.follow_dir(str(home)) as events:
        (home / "a").write_text("x" * 100_000)
        (home / "a").chmod(0o600)
        (home / "a").rename(home / "b")
        (home / "b").unlink()
        (home / "sub").mkdir()
        (home / "sub/quiet").write_text("below it is not asked for")
        (home / odd).touch()
        told = await until(events, (odd, "create"))
    assert told == [
        ("a", "create"), ("a", "write"), ("a", "chmod"), ("a", "rename"), ("b", "create"),
        ("b", "remove"), ("sub", "create"), (odd, "create"),
    ]  # fmt: skip


async def test_what_the_host_writes_is_told_once_it_is_whole(
    client: GuestClient, home: Path
) -> None:
    (home / "#7").touch()
    async with client.follow_dir(str(home)) as events:
        for text in (b"one", b"two"):
            await client.write(f"{home}/f", stream([text]), mode=0o600)
        with pytest.raises(RuntimeError):
            await client.write(f"{home}/broken", failing())
        (home / "#7").write_text("a name of their own")
        await client.unpack(str(home), stream([tar_of("g")]))
        (home / "last").touch()
        told = await until(events, ("last", "create"))
    assert told == [
        ("f", "create"), ("f", "write"), ("f", "create"), ("f", "write"), ("#7", "write"),
        ("g", "create"), ("g", "write"), ("last", "create"),
    ]  # fmt: skip


async def failing() -> AsyncIterator[bytes]:
    yield b"half"
    raise RuntimeError


def tar_of(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


async def test_with_all_below_it(client: GuestClient, home: Path) -> None:
    (home / "one/two").mkdir(parents=True)
    (home.parent / "else").mkdir()
    (home.parent / "else/inner").mkdir()
    (home.parent / "else/inner/f").touch()
    (home / "link").symlink_to(home.parent)
    async with client.follow_dir(str(home), recursive=True) as events:
        (home / "one/two/f").write_text("x")
        assert ("one/two/f", "write") in await until(events, ("one/two/f", "write"))
        (home / "new/er").mkdir(parents=True)
        await until(events, ("new/er", "create"))
        (home / "new/er/f").touch()
        await until(events, ("new/er/f", "create"))
        (home.parent / "else").rename(home / "moved")  # what is in it already is told, too
        told = await until(events, ("moved/inner/f", "create"))
        assert ("moved", "create") in told
        (home / "moved/inner/f").write_text("x")
        await until(events, ("moved/inner/f", "write"))
        (home / "one").rename(home / "uno")
        await until(events, ("uno/two/f", "create"))
        (home / "uno/two/f").write_text("y")
        told = await until(events, ("uno/two/f", "write"))
        assert not [name for name, _ in told if name.startswith("one/")]
        (home / "uno").rename(home.parent / "gone")
        await until(events, ("uno", "rename"))
        (home.parent / "gone/two/f").write_text("z")
        (home / "last").touch()
        assert await until(events, ("last", "create")) == [("last", "create")]


async def test_it_ends_with_its_folder(client: GuestClient, home: Path) -> None:
    for end in (shutil.rmtree, lambda path: path.rename(home / "away")):
        (home / "f").mkdir()
        async with client.follow_dir(f"{home}/f") as events:
            end(home / "f")
            async with asyncio.timeout(20):
                assert [event async for event in events] == []


async def test_what_cannot_be_followed(client: GuestClient, home: Path) -> None:
    (home / "file").touch()
    for path, error in ((f"{home}/none", NotFound), (f"{home}/file", InvalidRequest)):
        with pytest.raises(error, match="follow"):
            async with client.follow_dir(path):
                pass
    with pytest.raises(InvalidRequest, match="absolute"):
        async with client.follow_dir("here"):
            pass


async def test_nothing_is_left_behind(agent: Agent, client: GuestClient, home: Path) -> None:
    def open_now() -> int:
        count = 0
        for fd in Path(f"/proc/{agent.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed between the list and the look
                count += str(fd.readlink()) == "anon_inode:inotify"
        return count

    before = open_now()
    async with client.follow_dir(str(home)), client.follow_dir(str(home), recursive=True):
        assert open_now() == before + 2
    await eventually(lambda: open_now() == before)


async def test_only_so_many_are_followed(client: GuestClient, home: Path) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(follow_dir.MAX_FOLLOWED):
            await stack.enter_async_context(client.follow_dir(str(home)))
        with pytest.raises(LimitExceeded, match="64 folders are followed"):
            async with client.follow_dir(str(home)):
                pass


async def test_a_reader_that_stalls_is_told_what_it_missed(client: GuestClient, home: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    async with client.follow_dir(str(home)) as events:
        names = [f"{'x' * 200}{number % 2}" for number in range(2 * most + 60_000)]

        def churn() -> None:
            for name in names:  # each is told, as the one before has another name
                os.utime(home / name)

        for name in set(names):
            (home / name).touch()
        await asyncio.to_thread(churn)
        (home / "last").touch()
        kinds: set[FileEventType] = set()
        count = 0
        async with asyncio.timeout(60):
            async for event in events:
                kinds.add(event.type)
                count += 1
                if event.type is FileEventType.MISSED:
                    break
    assert FileEventType.MISSED in kinds
    assert count < len(names)
