"""Small parts of the agent: users, environments, spools, cgroups, the root device, the clock."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from torpor_guest import errors, users
from torpor_guest.cgroups import Cgroups
from torpor_guest.errors import AgentError
from torpor_guest.kernel import Kernel
from torpor_guest.launcher import Launcher
from torpor_guest.spool import Spool
from torpor_guest.system import System, root_device
from torpor_guest.users import Image, User, environment, find_user, group_name, user_name

ME = User("me", 1000, 1000, "/home/me", "/bin/sh")


def test_the_image_file(tmp_path: Path) -> None:
    assert Image.load(tmp_path / "none") == Image()
    file = tmp_path / "image.json"
    file.write_text('{"env": {"A": "1"}, "default_user": "agent", "default_cwd": "/workspace"}')
    assert Image.load(file) == Image({"A": "1"}, "agent", "/workspace")
    for text, reason in (
        ("[]", "not an object"),
        ("{", "Expecting"),
        ('{"env": 5}', "not an object"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=reason):
            Image.load(file)


def test_environments_are_laid_over_each_other() -> None:
    env = environment(ME, {"A": "image", "HOME": "/other"}, {"A": "exec"})
    assert (env[b"A"], env[b"HOME"], env[b"USER"]) == (b"exec", b"/other", b"me")
    assert b"/usr/bin" in env[b"PATH"]


@pytest.mark.parametrize("bad", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}])
def test_environments_that_cannot_be(bad: dict[str, str]) -> None:
    with pytest.raises(AgentError):
        environment(ME, bad)


def test_users() -> None:
    assert find_user(None).uid == os.geteuid()
    assert find_user("root" if os.geteuid() == 0 else str(os.geteuid())).uid == os.geteuid()
    for name in ("no-such-user", "", "-1", "99999999999", "a\0b"):
        with pytest.raises(AgentError) as caught:
            find_user(name)
        assert caught.value.code == errors.INVALID
    assert user_name(0) == "root"
    assert user_name(54321) == "54321"
    assert group_name(54321) == "54321"


def test_a_spool_keeps_up_to_its_limit(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "out"), limit=10, owner=None)
    assert spool.read(0, 100) == b""
    assert [spool.append(b"123456"), spool.append(b"789abc"), spool.append(b"x")] == [6, 4, 0]
    assert (spool.total, spool.kept, spool.is_truncated) == (13, 10, True)
    assert spool.read(4, 100) == b"56789a"
    spool.close()
    assert spool.read(0, 3) == b"123"
    spool.close()
    again = Spool(str(tmp_path / "out"), limit=0, owner=None)
    again.restore(13, 10)
    assert (again.total, again.kept, again.read(8, 9)) == (13, 10, b"9a")
    assert again.append(b"more") == 0
    again.close()
    (tmp_path / "out").write_bytes(b"12")
    shorter = Spool(str(tmp_path / "out"), limit=0, owner=None)
    shorter.restore(13, 10)
    assert (shorter.kept, shorter.total) == (2, 13)


def test_a_spool_whose_place_is_gone_counts_on(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "no/out"), limit=10, owner=None)
    assert spool.append(b"123") == 0
    assert (spool.total, spool.kept) == (3, 0)


def test_cgroups_that_are_not_there(tmp_path: Path) -> None:
    assert Cgroups.open("none").parent is None
    groups = Cgroups.open(str(tmp_path / "group"))
    assert groups.parent == tmp_path / "group/exec"
    assert groups.oom_kills(str(tmp_path)) == 0
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert groups.oom_kills(str(tmp_path)) == 2
    assert groups.remove(str(tmp_path / "never"))


MOUNTS = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:21 / /proc rw - proc proc rw
"""


def test_the_root_device() -> None:
    assert root_device(MOUNTS)[0] == "ext4"
    assert root_device("") == ("unknown", "")
    assert root_device("1 0 0:5 / / rw - overlay overlay rw") == ("overlay", "overlay")


def test_the_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(time, "clock_settime_ns", lambda clock, ns: calls.append((clock, ns)))
    system: Any = System.__new__(System)
    system._kernel = Kernel()
    now = 1_800_000_000 * 10**9
    asyncio.run(system.set_clock(None, {"now_ns": now}))
    assert calls == [(time.CLOCK_REALTIME, now)]
    for bad in (None, 5, "now", 10**22):
        with pytest.raises(AgentError):
            asyncio.run(system.set_clock(None, {"now_ns": bad}))

    def refuse(clock: int, ns: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(time, "clock_settime_ns", refuse)
    with pytest.raises(AgentError, match="Operation not permitted"):
        asyncio.run(system.set_clock(None, {"now_ns": now}))


def test_the_unit_file_is_with_the_package() -> None:
    import torpor_guest

    assert torpor_guest.__file__
    text = (Path(torpor_guest.__file__).parent / "torpor-agent.service").read_text()
    for line in ("Delegate=yes", "OOMScoreAdjust=-1000", "Restart=always", "KillMode=mixed"):
        assert line in text


def test_an_end_that_nobody_saw_is_not_made_up() -> None:
    async def scene() -> None:
        ends: list[tuple[int, int | None]] = []
        launcher = Launcher(Cgroups(None))
        link = launcher._open_link()
        os.kill(link.pid, signal.SIGKILL)
        os.waitpid(link.pid, 0)
        link.children = {  # as if it had started them
            1: lambda status: ends.append((1, status)),
            os.getpid(): lambda status: ends.append((2, status)),
        }
        launcher._spawner_gone(link)
        assert not link.is_open
        assert sorted(ends) == [(1, None), (2, None)]

    asyncio.run(scene())


def test_a_user_is_looked_up_again_when_the_files_change(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str | None] = []
    real = users._look_up
    monkeypatch.setattr(users, "_look_up", lambda name: (looked.append(name), real(name))[1])
    monkeypatch.setattr(users, "_known", {})
    monkeypatch.setattr(users, "_stamp", lambda: ((1, 1, 1),))
    assert find_user(None) == find_user(None)
    assert looked == [None]
    monkeypatch.setattr(users, "_stamp", lambda: ((1, 2, 1),))
    find_user(None)
    assert looked == [None, None]
    monkeypatch.setattr(users, "_KNOWN_S", 0.0)
    find_user(None)
    assert looked == [None] * 3
