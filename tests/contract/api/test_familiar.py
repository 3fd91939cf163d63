"""The spellings of E2B on our sandboxes mean what they mean there."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest

from tests.fakes.serving import ServerThread
from torpor import AsyncSandbox, Client, Sandbox
from torpor.errors import (
    CommandFailed,
    GenerationChanged,
    HostNotReady,
    InvalidRequest,
    NotFound,
    OperationTimeout,
)
from torpor.model import SandboxState
from torpor.model_file_events import FileEvent, FileEventType
from torpor.sdk import dir_watch
from torpor.sdk.dir_watch import WatchHandle


@pytest.fixture
def sandbox(server: ServerThread) -> Sandbox:
    return Sandbox.create()


def test_commands(sandbox: Sandbox) -> None:
    heard: list[str] = []
    found = sandbox.commands.run("echo hi; err oh", on_stdout=heard.append, envs={"A": "b"})
    assert (found.stdout, found.stderr, found.exit_code) == ("hi\n", "oh\n", 0)
    assert heard == ["hi\n"]
    assert "A=b\n" in sandbox.commands.run("env", envs={"A": "b"}).stdout
    with pytest.raises(CommandFailed) as caught:
        sandbox.commands.run("echo so; exit 3")
    assert (caught.value.facts["exit_code"], caught.value.facts["stdout"]) == (3, "so\n")
    with pytest.raises(OperationTimeout):
        sandbox.commands.run("sleep 9", timeout=0.2)
    assert sandbox.commands.run("sleep 0.1", timeout=0).exit_code == 0
    assert sandbox.commands.list() == []
    process = sandbox.commands.run("cat", background=True, stdin=True)
    (info,) = sandbox.commands.list()
    assert info.exec_id == process.exec_id
    assert info.pid is not None
    sandbox.commands.send_stdin(info.pid, "one ")
    sandbox.commands.send_stdin(info.exec_id, b"two")
    sandbox.commands.close_stdin(info.pid)
    assert process.wait().stdout == "one two"
    again = sandbox.commands.run("sleep 60", background=True)
    assert sandbox.commands.connect(again.exec_id).info().state == "running"
    assert sandbox.commands.kill(again.exec_id)
    assert not sandbox.commands.kill(again.exec_id), "it has ended"
    with pytest.raises(NotFound, match="no command 5 runs"):
        sandbox.commands.connect(5)
    for wrong in ({"stdin": True}, {"background": True, "on_stdout": print}):
        with pytest.raises(InvalidRequest):
            sandbox.commands.run("true", **wrong)  # type: ignore[call-overload]


def test_a_contexts_program_is_no_command_of_yours(sandbox: Sandbox) -> None:
    sandbox.run_code("hi")
    assert sandbox.commands.list() == []


def test_files(sandbox: Sandbox) -> None:
    files = sandbox.files
    assert files.write("/srv/a/b", "hé").path == "/srv/a/b"
    assert files.read("/srv/a/b") == "hé"
    assert files.read("/srv/a/b", format="bytes") == "hé".encode()
    assert b"".join(files.read("/srv/a/b", format="stream")) == "hé".encode()
    files.write("/srv/a/raw", b"\xff")
    assert files.read("/srv/a/raw") == "\ufffd"
    made = files.write_files([{"path": "/srv/c", "data": "c"}, {"path": "/srv/d/e", "data": b"e"}])
    assert [info.path for info in made] == ["/srv/c", "/srv/d/e"]
    assert [info.name for info in files.list("/srv")] == ["a", "c", "d"]
    assert "/srv/a/b" in [info.path for info in files.list("/srv", depth=2)]
    assert (files.make_dir("/srv/f/g"), files.make_dir("/srv/f/g")) == (True, False)
    assert files.get_info("/srv/c").size_bytes == 1
    files.rename("/srv/c", "/srv/f/c")
    assert (files.exists("/srv/c"), files.exists("/srv/f/c")) == (False, True)
    files.remove("/srv/f")
    assert not files.exists("/srv/f/c")
    with pytest.raises(NotFound):
        files.read("/srv/f/c")
    with pytest.raises(InvalidRequest):
        files.read("/srv/a/b", format="json")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest):
        files.list("/srv", depth=0)
    with pytest.raises(InvalidRequest, match="`path` and `data`"):
        files.write_files([{"path": "/srv/x", "data": "x"}, {"path": "/srv/y"}])
    assert not files.exists("/srv/x"), "nothing was begun"


def told(handle: WatchHandle, last: tuple[str, str]) -> list[tuple[str, str]]:
    """Return what a handle has, up to `last`."""
    found: list[tuple[str, str]] = []
    ends = time.monotonic() + 10
    while last not in found:
        assert time.monotonic() < ends, found
        found += [(event.name, str(event.type)) for event in handle.get_new_events()]
    return found


def test_a_folder_is_watched(sandbox: Sandbox) -> None:
    files = sandbox.files
    files.write("/srv/a/b", "before")
    handle = files.watch_dir("/srv")
    deep = files.watch_dir("/srv", recursive=True)
    assert handle.get_new_events() == []
    files.write("/srv/a/b", "deep")
    files.write("/srv/c", "c")
    files.rename("/srv/c", "/srv/d")
    files.remove("/srv/d")
    flat = [("c", "create"), ("c", "write"), ("c", "rename"), ("d", "create"), ("d", "remove")]
    assert told(handle, ("d", "remove")) == flat
    assert told(deep, ("d", "remove")) == [("a/b", "create"), ("a/b", "write"), *flat]
    handle.stop()
    handle.stop()
    with pytest.raises(InvalidRequest, match="was stopped"):
        handle.get_new_events()
    files.write("/srv/last", "x")
    files.remove("/srv")
    assert ("last", "write") in told(deep, ("last", "remove"))
    with pytest.raises(NotFound, match="removed or moved away"):
        told(deep, ("never", "told"))
    for path, error in (("/none", NotFound), ("relative", InvalidRequest)):
        with pytest.raises(error):
            files.watch_dir(path)


def test_a_watch_says_why_it_ended(sandbox: Sandbox) -> None:
    handle = sandbox.files.watch_dir("/workspace")
    sandbox.hibernate()
    with pytest.raises(GenerationChanged):
        told(handle, ("never", "told"))
    handle.stop()


def test_what_nobody_asks_for_is_not_kept_for_ever(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dir_watch, "EVENTS_MOST", 3)
    handle = sandbox.files.watch_dir("/workspace")
    probe = sandbox.files.watch_dir("/workspace")
    for number in range(9):
        sandbox.files.make_dir(f"/workspace/{number}")
        told(probe, (str(number), "create"))  # one after the other, so that nothing of it waits
    kinds = ["create", "create", "create", "missed"]
    ends = time.monotonic() + 10
    while len(handle._handle._kept) < len(kinds):
        assert time.monotonic() < ends
    assert [event.type for event in handle.get_new_events()] == kinds
    sandbox.files.make_dir("/workspace/later")
    assert told(handle, ("later", "create"))[-1] == ("later", "create")


def test_an_asynchronous_watch(server: ServerThread) -> None:
    async def scene() -> None:
        sandbox = await AsyncSandbox.create()
        heard: asyncio.Queue[FileEvent] = asyncio.Queue()
        ended: asyncio.Queue[Exception] = asyncio.Queue()
        handle = await sandbox.files.watch_dir("/workspace", heard.put, ended.put)
        await sandbox.files.make_dir("/workspace/x")
        async with asyncio.timeout(10):
            assert await heard.get() == FileEvent(name="x", type=FileEventType.CREATE)
        await handle.stop()
        await sandbox.files.watch_dir("/workspace", heard.put_nowait, ended.put, timeout=0.2)
        async with asyncio.timeout(10):
            assert isinstance(await ended.get(), OperationTimeout)
        assert (heard.empty(), ended.empty()) == (True, True)

        def fail(event: FileEvent) -> None:
            raise RuntimeError(event.name)

        await sandbox.files.watch_dir("/workspace", fail, ended.put_nowait, timeout=0)
        await sandbox.files.make_dir("/workspace/y")
        async with asyncio.timeout(10):
            assert repr(await ended.get()) == "RuntimeError('y')"

    asyncio.run(scene())


def test_life(sandbox: Sandbox) -> None:
    assert sandbox.sandbox_id == sandbox.id
    assert Sandbox.get_info(sandbox.id).state is SandboxState.RUNNING
    assert (sandbox.is_running(), Sandbox.is_running(sandbox.id)) == (True, True)
    Sandbox.set_timeout(sandbox.id, 600)
    assert sandbox.get_info().ttl_seconds == 600
    sandbox.hibernate()
    assert not sandbox.is_running()
    found = Sandbox.connect(sandbox.id)
    assert (found.id, found.is_running()) == (sandbox.id, True)
    sandbox.pause()
    assert sandbox.connect() is sandbox
    assert sandbox.is_running()
    sandbox.kill()
    with pytest.raises(NotFound):
        Sandbox.connect("sbx_00000000000000000000")


def test_connecting_never_shortens_a_lease(sandbox: Sandbox) -> None:
    sandbox.connect(timeout=60)
    assert sandbox.info.expires_at is None, "one without an end has none still"
    sandbox.set_timeout(600)
    left = _left(sandbox)
    sandbox.connect(timeout=60)
    assert abs(_left(sandbox) - left) < 30
    sandbox.connect(timeout=6000)
    assert _left(sandbox) > 5000


def _left(sandbox: Sandbox) -> float:
    expires = sandbox.refresh().expires_at
    assert expires is not None
    return (expires - datetime.now(UTC)).total_seconds()


def test_asynchronously(server: ServerThread) -> None:
    async def work() -> None:
        sandbox = await AsyncSandbox.create()
        assert (await sandbox.commands.run("echo hi")).stdout == "hi\n"
        process = await sandbox.commands.run("sleep 60", background=True)
        assert await sandbox.commands.kill(process.exec_id)
        await sandbox.files.write("/srv/a", "a")
        assert await sandbox.files.read("/srv/a") == "a"
        chunks = await sandbox.files.read("/srv/a", format="stream")
        assert [chunk async for chunk in chunks] == [b"a"]
        assert await AsyncSandbox.is_running(sandbox.id)
        await sandbox.set_timeout(60)
        assert (await AsyncSandbox.connect(sandbox.id)).info.ttl_seconds == 60

    asyncio.run(work())


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://127.0.0.1:8080", "8000-sbx_1.localhost:8080"),
        ("http://[::1]:8080", "8000-sbx_1.localhost:8080"),
        ("https://box.example", "8000-sbx_1.box.example"),
        ("http://Box.example:81/", "8000-sbx_1.box.example:81"),
    ],
)
def test_the_name_of_a_port(url: str, host: str) -> None:
    sandbox = Sandbox.handle("sbx_1", client=Client(url=url))
    assert sandbox.get_host(8000) == host
    assert AsyncSandbox.handle("sbx_1", client=Client(url=url)).get_host(8000) == host
    with pytest.raises(InvalidRequest):
        sandbox.get_host(65536)


@pytest.mark.parametrize("url", [None, "unix:///run/torpord.sock", "http://10.0.0.7:8080"])
def test_where_a_port_has_no_name(url: str | None) -> None:
    with pytest.raises(HostNotReady):
        Sandbox.handle("sbx_1", client=Client(url=url)).get_host(8000)
