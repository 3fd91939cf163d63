"""The table of nftables that a Firecracker's machine has on the host: one of its own, removed with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from torpor.vmm.firecracker import network


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the tables of a host of paper, each with the rules in it."""
    found: dict[str, str] = {}

    async def run(argv: Sequence[str], script: str) -> None:
        if argv[0] != "nft":
            return
        for delete, name, rules in re.findall(
            r"(delete )?table ip (\w+)( \{.*\})?", script, re.DOTALL
        ):
            if delete:
                del found[name]
            else:
                found[name] = found.get(name, "") + rules

    monkeypatch.setattr(network, "_run", run)
    monkeypatch.setattr(network, "_tool", lambda name: name)
    monkeypatch.setattr(network, "_let_host_forward", lambda: None)
    return found


def _folder(place: Path, *names: str) -> Path:
    folder = place.joinpath(*names)
    folder.mkdir(parents=True)
    return folder


def _way_out(folder: Path) -> str:
    """Give a machine its way out; return its address."""
    _, inner = asyncio.run(network._way_out(folder, 1))
    return str(inner)


def test_builds_whose_folders_have_the_same_name_have_tables_of_their_own(
    tmp_path: Path, tables: dict[str, str]
) -> None:
    one, two = (_folder(tmp_path, name, "vm") for name in ("build-a", "build-b"))
    first, second = _way_out(one), _way_out(two)
    assert len(tables) == 2
    asyncio.run(network.remove(one))
    (left,) = tables.values()
    assert second in left
    assert first not in left
    asyncio.run(network.remove(two))
    assert tables == {}
    assert not list(two.iterdir())


def test_a_machine_that_an_earlier_version_started_leaves_no_table(
    tmp_path: Path, tables: dict[str, str]
) -> None:
    folder, other = (_folder(tmp_path, name) for name in ("sbx_one", "sbx_two"))
    (folder / "network").touch()
    tables |= {"torpor_sbx_one": "", "torpor_sbx_two": ""}
    asyncio.run(network.remove(folder))
    assert set(tables) == {"torpor_sbx_two"}
    (other / "network").touch()
    _way_out(other)  # it is started again, and nobody removed the old one
    assert len(tables) == 1
    assert "torpor_sbx_two" not in tables
    asyncio.run(network.remove(other))
    assert tables == {}


def test_a_table_is_removed_by_a_daemon_that_knows_its_home_by_another_name(
    tmp_path: Path, tables: dict[str, str]
) -> None:
    folder = _folder(tmp_path, "home", "sbx_one")
    _way_out(folder)
    (tmp_path / "link").symlink_to(tmp_path / "home")
    asyncio.run(network.remove(tmp_path / "link" / "sbx_one"))
    assert tables == {}


def test_a_note_that_names_no_table_of_ours_is_not_believed(
    tmp_path: Path, tables: dict[str, str]
) -> None:
    folder = _folder(tmp_path, "sbx_one")
    tables |= {"torpor_sbx_one": "", "filter": ""}
    (folder / "network").write_text("filter")
    asyncio.run(network.remove(folder))
    assert set(tables) == {"filter"}
