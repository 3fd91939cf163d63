"""The programs that start a server in a volume without room, run by a shell with stand-ins for a machine's programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torpor.databases import server
from torpor.errors import DatabaseFull, GuestFailed

pytestmark = pytest.mark.anyio

NEED = 16
"""MiB that the server wants to start."""


class Volume:
    """A volume with some room, and a server on it."""

    def __init__(self, folder: Path, free_mib: int) -> None:
        self.place, self.programs = folder / "place", folder / "bin"
        self.place.mkdir()
        self.programs.mkdir()
        self.free = folder / "free"
        self.free.write_text(str(free_mib))
        self.broken = folder / "broken"
        self.log = folder / "log"
        self.log.touch()
        reserve = self.place / "reserve"
        left = f"left=$(cat {self.free}); [ ! -e {reserve} ] || left=$((left - 48))"
        self.program("df", f'{left}; echo Avail; echo "${{left}}M"')
        self.program(
            "systemctl",
            f"""echo "$*" >>{self.log}
            case $1 in
                is-active) exit 3 ;;
                start) {left}; [ ! -e {self.broken} ] && [ "$left" -ge {NEED} ] ;;
            esac""",
        )
        self.program("journalctl", "echo PANIC: could not write")
        self.program("fallocate", 'for last; do :; done; : >"$last"')
        self.program("sync", ":")

    def program(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    async def run(self, _guest: object, command: str, **_: object) -> str:
        text = command.replace(server.PLACE, str(self.place)).replace(
            "/usr/lib/torpor/postgres/configure", "true"
        )
        done = subprocess.run(
            ["sh", "-c", text],
            env={"PATH": f"{self.programs}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode:
            raise GuestFailed(f"PostgreSQL's machine refused: {done.stderr.strip()}")
        return done.stdout.strip()

    @property
    def has_reserve(self) -> bool:
        return (self.place / "reserve").exists()


@pytest.mark.parametrize("free_mib", [500, 95, 70])
async def test_a_reserve_is_made_where_there_is_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int
) -> None:
    volume = Volume(tmp_path, free_mib)
    monkeypatch.setattr(server, "run", volume.run)
    for _ in range(2):
        assert await server.start(None, "shop") is (free_mib == 500)  # type: ignore[arg-type]
    assert volume.has_reserve is (free_mib == 500)
    assert not list(volume.place.glob("*.part"))


async def test_it_is_given_up_once_and_made_anew_when_the_volume_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = Volume(tmp_path, 500)
    monkeypatch.setattr(server, "run", volume.run)
    assert await server.start(None, "shop")  # type: ignore[arg-type]
    volume.free.write_text("50")  # of which the reserve takes 48
    assert not await server.start(None, "shop")  # type: ignore[arg-type]
    assert not volume.has_reserve
    assert not await server.keep_room(None)  # type: ignore[arg-type]
    volume.free.write_text("2")
    with pytest.raises(DatabaseFull, match="shop is down") as caught:
        await server.start(None, "shop")  # type: ignore[arg-type]
    assert caught.value.hint is not None
    assert "torpor db grow shop" in caught.value.hint
    assert "PANIC" in str(caught.value.facts["log"])
    assert volume.log.read_text().splitlines()[-1] == f"stop {server.UNIT}", (
        "it does not try for ever"
    )
    volume.free.write_text("1026")
    assert await server.configure(None, "shop")  # type: ignore[arg-type]
    assert volume.has_reserve


async def test_what_does_not_start_for_another_reason_keeps_its_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = Volume(tmp_path, 500)
    monkeypatch.setattr(server, "run", volume.run)
    assert await server.start(None, "shop")  # type: ignore[arg-type]
    volume.broken.touch()
    with pytest.raises(GuestFailed, match="PANIC") as caught:
        await server.start(None, "shop")  # type: ignore[arg-type]
    assert not isinstance(caught.value, DatabaseFull)
    assert volume.has_reserve
