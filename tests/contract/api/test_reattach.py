"""Lost connections: every byte once, nothing started twice, no made-up end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.serving import CuttingProxy, ServerThread
from torpor import Client, Sandbox
from torpor.base.home import Home
from torpor.errors import CommandLost
from torpor.sdk import feed
from torpor.sdk.client import ConnectionLost


class Lossy:
    """Makes sandboxes that are reached through a proxy that loses connections."""

    def __init__(self, server: ServerThread, home: Home, tmp_path: Path) -> None:
        self.server = server
        self.home = home
        self.path = tmp_path / "p.sock"
        self.proxy: CuttingProxy | None = None

    def sandbox(self, *cuts: int) -> Sandbox:
        made = Sandbox.create()
        self.proxy = CuttingProxy(self.server, self.home.socket, self.path, list(cuts))
        return Sandbox.handle(made.id, client=Client(url=self.proxy.url))


@pytest.fixture
def lossy(server: ServerThread, home: Home, tmp_path: Path) -> Iterator[Lossy]:
    found = Lossy(server, home, tmp_path)
    yield found
    assert found.proxy is not None
    found.proxy.close()


@pytest.mark.parametrize("cut", [1, 100, 300, 600, 5000, 100000])
def test_exec_goes_on_after_cuts(lossy: Lossy, cut: int) -> None:
    sandbox = lossy.sandbox(cut, cut, cut * 3)
    result = sandbox.exec("mark ran; hex e282ac; spew 300000; err done; exit 4")
    assert result.exit_code == 4
    assert result.stdout == "€" + "x" * 300000
    assert result.stderr == "done\n"
    assert lossy.server.guest(sandbox.id).marks["ran"] == 1
    assert lossy.proxy is not None
    assert lossy.proxy.connections > 1


def test_attach_gives_every_byte_once(lossy: Lossy) -> None:
    sandbox = lossy.sandbox(*[20000] * 30)
    direct = Sandbox.handle(sandbox.id)
    started = direct.exec("spew 400000; hex 00ff; err e", background=True)
    process = sandbox.attach(started.exec_id)
    digest, expected = hashlib.sha256(), 0
    for event in process.events():
        data = getattr(event, "data", b"")
        if getattr(event, "stream", "") == "stdout":
            assert event.offset == expected
            expected += len(data)
            digest.update(data)
    assert digest.hexdigest() == hashlib.sha256(b"x" * 400000 + b"\x00\xff").hexdigest()
    assert lossy.proxy is not None
    assert lossy.proxy.connections > 10


def test_a_start_that_was_lost_on_the_way_back_is_not_repeated(lossy: Lossy) -> None:
    sandbox = lossy.sandbox(1)
    process = sandbox.exec("mark ran; cat", background=True)
    process.kill()
    assert lossy.server.guest(sandbox.id).marks["ran"] == 1


def test_stdin_is_fed_once(lossy: Lossy) -> None:
    sandbox = lossy.sandbox(50, 400)
    assert sandbox.exec("cat", stdin="in" * 1000).stdout == "in" * 1000


def test_a_daemon_that_stays_away_is_given_up(
    lossy: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "RETRY_LIMIT_S", 0.5)
    sandbox = lossy.sandbox(330, *[1] * 200)
    with pytest.raises(ConnectionLost):
        sandbox.exec("echo part; sleep 60")


def test_a_sandbox_that_goes_meanwhile(lossy: Lossy) -> None:
    sandbox = lossy.sandbox(450)
    events = sandbox.exec_stream("echo part; sleep 0.2; spew 1000; sleep 60")
    next(events)
    lossy.server.engine.sandboxes.clear()
    with pytest.raises(CommandLost, match="no longer known"):
        list(events)


def test_other_requests_are_not_repeated(lossy: Lossy) -> None:
    sandbox = lossy.sandbox(1)
    with pytest.raises(ConnectionLost, match="broke"):
        sandbox.pause()


def test_a_download_that_is_cut_is_no_file(lossy: Lossy, tmp_path: Path) -> None:
    sandbox = lossy.sandbox(700, 20000)
    Sandbox.handle(sandbox.id).filesystem.write("/big", b"x" * 500000)
    target = tmp_path / "big"
    target.write_bytes(b"old")
    with pytest.raises(ConnectionLost):
        sandbox.filesystem.download("/big", target)
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []
