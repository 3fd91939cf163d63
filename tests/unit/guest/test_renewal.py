"""Renewal and identity, over a kernel on paper and in a folder that stands for the machine's root."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fakes.guest_kernel import PaperKernel
from torpor_guest import errors, identity, proctree, renewal, users
from torpor_guest.errors import AgentError
from torpor_guest.freezer import Freezer
from torpor_guest.gate import Gate
from torpor_guest.identity import replace_file
from torpor_guest.quiesce import Quiesce
from torpor_guest.renewal import Renewals, Request
from torpor_guest.stillness import Stillness

pytestmark = pytest.mark.anyio

NOW_NS = 1_800_000_000 * 10**9
HOSTS = "127.0.0.1\tlocalhost\n127.0.1.1 old.example old\n::1 ip6-localhost\n"
UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\n")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class PaperPrograms:
    """Programs that are not run; `results` says how they end."""

    def __init__(self) -> None:
        self.ran: list[tuple[list[str], float, dict[str, str]]] = []
        self.results: dict[str, tuple[int, str] | AgentError] = {}
        self.files: dict[str, str] = {}

    async def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        self.ran.append((list(argv), timeout_s, dict(env or {})))
        if argv[0] == "ssh-keygen" and argv[0] not in self.results:
            Path(argv[-1]).write_text("new key")
            Path(f"{argv[-1]}.pub").write_text("new public key")
        result = self.results.get(argv[0].rpartition("/")[2], (0, ""))
        if isinstance(result, AgentError):
            raise result
        return result


class World:
    """A machine in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("etc/ssh", "etc/torpor/on-restore.d", "run/torpor", "var/lib/dbus"):
            (root / folder).mkdir(parents=True)
        (root / "var/lib/systemd").mkdir()
        (root / "proc/sys/kernel/random").mkdir(parents=True)
        self.put("proc/sys/kernel/random/boot_id", "00000000-1111-4222-8333-444444444444\n")
        self.put("etc/hostname", "old\n")
        self.put("etc/hosts", HOSTS)
        self.put("etc/machine-id", "0" * 32 + "\n")
        self.kernel = PaperKernel(root)
        self.programs = PaperPrograms()
        self.gate = Gate()
        self.freezer = Freezer(self.kernel, self.gate)
        quiesce = Quiesce(self.kernel, self.freezer, cast("Any", None), root)
        programs = cast("Any", self.programs)
        self.renewals = Renewals(
            self.kernel, self.freezer, programs, quiesce, Stillness(self.kernel, programs)
        )

    def put(self, name: str, text: str, *, mode: int = 0o644) -> None:
        (self.root / name).write_text(text)
        (self.root / name).chmod(mode)

    def get(self, name: str) -> str:
        return (self.root / name).read_text()

    def calls(self) -> list[str]:
        return [call[0] for call in self.kernel.calls]

    async def renew(self, **changes: Any) -> dict[str, Any]:
        return await self.renewals.renew(Request.parse({**PARAMS, **changes}))


PARAMS: dict[str, Any] = {
    "reason": "fork",
    "generation": 7,
    "now_ns": NOW_NS,
    "entropy": "ab" * 64,
    "hostname": "sbx-1",
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_fork_becomes_another_machine_in_this_order(world: World) -> None:
    await world.freezer.freeze(30)
    world.kernel.calls.clear()
    answer = await world.renew()
    assert answer == {
        "done": ["entropy", "clock", "thaw", "release", "identity", "generation"],
        "was_frozen": True,
        "notes": [],
    }
    assert world.calls() == ["reseed", "set_clock", "thaw", "set_hostname", "bind"]
    assert world.kernel.calls[0] == ("reseed", "ab" * 64)
    assert world.kernel.calls[1] == ("set_clock", NOW_NS)
    assert not world.gate.is_shut
    assert world.get("etc/hostname") == "sbx-1\n"
    assert world.get("etc/hosts") == HOSTS.replace("127.0.1.1 old.example old", "127.0.1.1\tsbx-1")
    assert re.fullmatch(r"(?!0{32})[0-9a-f]{12}4[0-9a-f]{19}\n", world.get("etc/machine-id"))
    assert stat.S_IMODE((world.root / "etc/machine-id").stat().st_mode) == 0o444
    assert UUID4.fullmatch(world.get("proc/sys/kernel/random/boot_id"))
    assert not list(world.root.rglob("*.tmp"))
    assert world.programs.ran == [], "no program is started for nothing"


@pytest.mark.parametrize("reason", ["wake", "rollback"])
async def test_who_wakes_is_who_fell_asleep(world: World, reason: str) -> None:
    world.put("etc/ssh/ssh_host_rsa_key", "old key")
    before = {p: p.read_bytes() for p in world.root.rglob("*") if p.is_file()}
    answer = await world.renew(reason=reason, hostname=None)
    assert answer["done"] == ["entropy", "clock", "thaw", "release", "generation"]
    assert answer["was_frozen"] is False
    after = {p: p.read_bytes() for p in world.root.rglob("*") if p.is_file()}
    assert set(after) - set(before) == {world.root / "run/torpor/generation"}
    assert all(after[path] == before[path] for path in before)


async def test_the_generation_file(world: World) -> None:
    await world.renew()
    first = (world.root / "run/torpor/generation").stat().st_ino
    told = json.loads(world.get("run/torpor/generation"))
    assert (told["generation"], told["reason"]) == (7, "fork")
    assert datetime.fromisoformat(told["at"]).tzinfo
    await world.renew(generation=8, reason="wake", hostname=None)
    assert json.loads(world.get("run/torpor/generation"))["generation"] == 8
    assert (world.root / "run/torpor/generation").stat().st_ino != first, "replaced, not rewritten"


async def test_every_renewal_draws_anew(world: World) -> None:
    seen = set()
    for _ in range(3):
        await world.renew()
        seen.add(world.get("etc/machine-id"))
        seen.add(world.get("proc/sys/kernel/random/boot_id"))
    assert len(seen) == 6
    assert world.calls().count("bind") == 1, "bound once, then written in place"


@pytest.mark.parametrize(
    ("call", "later"),
    [
        ("reseed", {"set_clock", "thaw", "set_hostname", "bind"}),
        ("set_clock", {"thaw", "set_hostname", "bind"}),
        ("set_hostname", {"bind"}),
        ("bind", set()),
    ],
)
async def test_a_step_that_fails_ends_it(world: World, call: str, later: set[str]) -> None:
    await world.freezer.freeze(30)
    world.kernel.refusals[call] = errno.EPERM, 0
    with pytest.raises(AgentError, match="not permitted") as caught:
        await world.renew()
    assert (caught.value.code, caught.value.facts["errno"]) == (errors.FAILED, "EPERM")
    assert not later & set(world.calls())
    assert not (world.root / "run/torpor/generation").exists()
    world.kernel.refusals.clear()
    assert (await world.renew())["notes"] == [], "it can be done again"
    assert world.kernel.frozen == []


async def test_an_identity_that_did_not_take_is_found_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.kernel, "bind", lambda source, target: None)
    with pytest.raises(AgentError, match="still shows the old one"):
        await world.renew()


async def test_a_full_disk_ends_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(AgentError, match="No space left") as caught:
            await world.renew()
    assert caught.value.code == errors.FAILED
    assert not list(world.root.rglob("*.tmp"))
    assert world.get("etc/machine-id") == "0" * 32 + "\n", "never a half-written one"


async def test_what_a_small_image_lacks_is_not_missed(world: World) -> None:
    (world.root / "etc/hosts").unlink()
    (world.root / "etc/ssh").rmdir()
    (world.root / "etc/torpor/on-restore.d").rmdir()
    (world.root / "etc/machine-id").unlink()
    assert (await world.renew())["notes"] == []
    assert len(world.get("etc/machine-id")) == 33
    assert not (world.root / "etc/hosts").exists()


async def test_other_copies_of_the_identity(world: World) -> None:
    world.put("var/lib/dbus/machine-id", "0" * 32 + "\n")
    world.put("var/lib/systemd/random-seed", "s" * 512, mode=0o600)
    await world.renew()
    assert world.get("var/lib/dbus/machine-id") == world.get("etc/machine-id")
    seed = world.root / "var/lib/systemd/random-seed"
    assert seed.read_bytes() != b"s" * 512
    assert (seed.stat().st_size, stat.S_IMODE(seed.stat().st_mode)) == (512, 0o600)
    (world.root / "var/lib/dbus/machine-id").unlink()
    (world.root / "var/lib/dbus/machine-id").symlink_to("../../../etc/machine-id")
    await world.renew()
    assert (world.root / "var/lib/dbus/machine-id").is_symlink()


async def test_the_journal_is_found_under_the_new_name(world: World) -> None:
    folder = world.root / "var/log/journal"
    (folder / ("0" * 32)).mkdir(parents=True)
    (folder / ("0" * 32) / "system.journal").write_text("log")
    for _ in range(3):
        await world.renew()
        now = folder / world.get("etc/machine-id").strip()
        assert (now / "system.journal").read_text() == "log"
        assert now.is_symlink()
    assert len(list(folder.iterdir())) == 2, "one link, however often"


async def test_a_run_folder_that_is_gone(world: World) -> None:
    (world.root / "run/torpor").rmdir()
    await world.renew()
    assert (world.root / "run/torpor/generation").exists()
    for file in (world.root / "run/torpor").iterdir():
        file.unlink()
    (world.root / "run/torpor").rmdir()
    await world.freezer.freeze(30)
    assert await world.freezer.thaw() is True


def test_a_name_that_something_is_mounted_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(source: object, target: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    (tmp_path / "machine-id").write_text("old")
    monkeypatch.setattr(os, "rename", busy)
    replace_file(tmp_path / "machine-id", b"new")
    assert (tmp_path / "machine-id").read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 1


class TestHostKeys:
    @pytest.fixture(autouse=True)
    def keys(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        for kind in ("rsa", "ed25519"):
            world.put(f"etc/ssh/ssh_host_{kind}_key", "old key", mode=0o600)
            world.put(f"etc/ssh/ssh_host_{kind}_key.pub", "old public key")
        world.put("etc/ssh/sshd_config", "config")
        processes = [
            proctree.Process(10, 1, 0, 10, "S", False, 1, "sshd"),
            proctree.Process(11, 10, 0, 11, "S", False, 1, "sshd"),
            proctree.Process(12, 1, 1000, 12, "S", False, 1, "sshd"),
        ]
        titles = {10: "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100", 11: "sshd: agent [priv]"}
        monkeypatch.setattr(proctree, "scan", lambda: {p.pid: p for p in processes})
        monkeypatch.setattr(proctree, "command_of", lambda p: titles.get(p.pid, titles[10]))

    def names(self, world: World) -> list[str]:
        return sorted(path.name for path in (world.root / "etc/ssh").iterdir())

    async def test_are_made_anew_and_sshd_takes_them(self, world: World) -> None:
        before = self.names(world)
        assert (await world.renew())["notes"] == []
        assert self.names(world) == before
        assert world.get("etc/ssh/ssh_host_rsa_key") == "new key"
        assert world.get("etc/ssh/ssh_host_rsa_key.pub") == "new public key"
        assert [ran[0][:6] for ran in world.programs.ran] == [
            ["ssh-keygen", "-q", "-N", "", "-t", "ed25519"],
            ["ssh-keygen", "-q", "-N", "", "-t", "rsa"],
        ]
        assert world.kernel.calls[-1] == ("signal", 10, 1), "the listener, no session, no impostor"

    @pytest.mark.parametrize(
        "result", [AgentError(errors.INVALID, "no such program"), (1, "no entropy")]
    )
    async def test_old_ones_go_even_if_no_new_ones_come(
        self, world: World, result: AgentError | tuple[int, str]
    ) -> None:
        world.programs.results["ssh-keygen"] = result
        notes = (await world.renew())["notes"]
        assert len(notes) == 2
        assert "was removed and not made anew: no " in notes[0]
        assert self.names(world) == ["sshd_config"]

    async def test_one_that_takes_too_long_ends_it(self, world: World) -> None:
        world.programs.results["ssh-keygen"] = AgentError(errors.TIMEOUT, "ran longer than 120 s")
        with pytest.raises(AgentError, match="longer"):
            await world.renew()


class TestHooks:
    FOLDER = "etc/torpor/on-restore.d"

    async def test_run_in_order_with_the_reason(self, world: World) -> None:
        for name in ("20-b", "10-a", ".hidden", "30-c~"):
            world.put(f"{self.FOLDER}/{name}", "", mode=0o755)
        world.put(f"{self.FOLDER}/README", "not executable")
        (world.root / self.FOLDER / "15-folder").mkdir()
        (world.root / self.FOLDER / "16-dangling").symlink_to("nowhere")
        await world.renew(reason="wake", hostname=None)
        folder = world.root / self.FOLDER
        assert world.programs.ran == [
            (
                [f"{folder}/{name}", "wake"],
                10.0,
                {"TORPOR_RESTORE_REASON": "wake", "TORPOR_GENERATION": "7"},
            )
            for name in ("10-a", "20-b")
        ]

    async def test_one_that_fails_stops_nothing_and_is_told(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in ("1", "2", "3"):
            world.put(f"{self.FOLDER}/{name}", "", mode=0o755)
        world.programs.results["1"] = (3, "it did not like it\n")
        world.programs.results["2"] = AgentError(errors.TIMEOUT, "ran longer than 10 s")
        answer = await world.renew()
        assert len(world.programs.ran) == 3
        assert [note.rpartition("/")[2] for note in answer["notes"]] == [
            "1 ended with status 3: it did not like it",
            "ran longer than 10 s",
        ]
        assert "did not like it" in caplog.text

    async def test_all_together_have_a_limit(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(renewal, "_HOOKS_LIMIT_S", 0.0)
        world.put(f"{self.FOLDER}/1", "", mode=0o755)
        (note,) = (await world.renew())["notes"]
        assert "was not run" in note
        assert world.programs.ran == []

    async def test_come_after_the_generation(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.put(f"{self.FOLDER}/1", "", mode=0o755)

        async def run(argv: Sequence[str], **_: object) -> tuple[int, str]:
            assert json.loads(world.get("run/torpor/generation"))["generation"] == 7
            return 0, ""

        monkeypatch.setattr(world.programs, "run", run)
        assert (await world.renew())["notes"] == []


async def test_names_are_looked_up_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(users._user_names, 54321, "who-it-was")
    await world.renew(reason="wake", hostname=None)
    assert users.user_name(54321) == "54321"


async def test_two_at_once_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("etc/torpor/on-restore.d/1", "", mode=0o755)
    running = 0

    async def run(argv: Sequence[str], **_: object) -> tuple[int, str]:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.01)
        running -= 1
        return 0, ""

    monkeypatch.setattr(world.programs, "run", run)
    answers = await asyncio.gather(world.renew(), world.renew(generation=8))
    assert [answer["notes"] for answer in answers] == [[], []]


@pytest.mark.parametrize(
    "bad",
    [
        {"reason": ""},
        {"reason": "../x"},
        {"reason": None},
        {"generation": None},
        {"generation": -1},
        {"generation": "7"},
        {"now_ns": None},
        {"now_ns": 5},
        {"entropy": ""},
        {"entropy": "ab" * 31},
        {"entropy": "ab" * 513},
        {"entropy": "no hex"},
        {"entropy": None},
        {"hostname": ""},
        {"hostname": "-x"},
        {"hostname": "x-"},
        {"hostname": "a.b"},
        {"hostname": "a\nb"},
        {"hostname": "A"},
        {"hostname": "x" * 64},
        {"hostname": 5},
    ],
)
def test_what_cannot_be_asked(bad: dict[str, Any]) -> None:
    Request.parse(PARAMS)
    with pytest.raises(AgentError) as caught:
        Request.parse({**PARAMS, **bad})
    assert caught.value.code == errors.INVALID


def test_a_host_name_that_fits() -> None:
    for name in ("a", "sbx-01hx3v", "x" * 63):
        assert identity.check_hostname(name) == name
