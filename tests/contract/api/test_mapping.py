"""Every call of ours in docs/reference/mapping.md runs; here with a fake machine, in tests/vm with a real one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fakes.serving import serving_tcp
from torpor import AsyncSandbox, Sandbox, Templates, Volume
from torpor.base.home import Home
from torpor.model_access import Scope

PAGE = Path(__file__).parents[3] / "docs/reference/mapping.md"
HEAD = ["what", "E2B", "Daytona", "Modal", "PandaStack", "Torpor"]


class Row(NamedTuple):
    """One row of a table."""

    what: str
    peers: list[str]
    ours: list[str]


def rows() -> list[Row]:
    """Return the rows of the page's tables, from top to bottom."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|") or cells == HEAD or set(line) <= set("|- "):
            continue
        assert len(cells) == len(HEAD), line
        ours = re.findall(r"`([^`]+)`", cells[-1])
        assert "`, `".join(ours) == cells[-1].strip("`"), line
        found.append(Row(cells[0], cells[1:-1], ours))
    return found


def run_rows(sandbox: Sandbox, other: Sandbox, local: Path, skipped: tuple[str, ...] = ()) -> int:
    """Run every call of ours, one after the other, as a script would; return how many those were."""
    local.write_text("from here")
    names: dict[str, Any] = {
        "Sandbox": Sandbox,
        "Templates": Templates,
        "Volume": Volume,
        "sbx": sandbox,
        "other": other,
        "local": str(local),
    }
    count = 0
    for row in rows():
        for call in row.ours:
            if call in skipped:
                continue
            try:
                exec(compile(call, f"mapping.md: {row.what}", "exec"), names)
            except Exception as exc:
                exc.add_note(f"mapping.md: {row.what}: {call}")
                raise
            count += 1
    assert sandbox.is_running()
    assert not sandbox.commands.list(), "what was begun was ended"
    return count


def test_the_page_has_rows_and_every_peer_has_calls() -> None:
    found = rows()
    assert len(found) > 50
    for column in range(4):
        assert sum(row.peers[column].startswith("`") for row in found) > 20
    for row in found:
        assert row.ours, row.what
        for cell in row.peers:
            assert cell == "—" or re.fullmatch(r"`[^`]+`", cell), (row.what, cell)
            if cell != "—":
                compile(cell.strip("`"), row.what, "exec")


def test_every_call_of_ours_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_tcp(Home(tmp_path / "home")) as tcp:
        monkeypatch.setenv("TORPOR_URL", tcp.url)
        monkeypatch.setenv("TORPOR_TOKEN", tcp.token("mapping", Scope.ADMIN))
        try:
            assert run_rows(Sandbox.create(), Sandbox.create(), tmp_path / "file") > 60
        finally:
            tcp.server.run(tcp.server.engine.aclose())


def test_what_is_said_to_be_there_in_both_spellings_is() -> None:
    said = re.search(r"says the same as ours both are there: ((?:`\w+`,?\s*)+)", PAGE.read_text())
    assert said is not None
    names = re.findall(r"`(\w+)`", said[1])
    assert len(names) > 5
    for name in names:
        assert hasattr(Sandbox, name), name
        assert hasattr(AsyncSandbox, name), name


@pytest.mark.parametrize("name", ["Sandbox", "AsyncSandbox"])
def test_peers_calls_that_are_spelled_as_ours_exist(name: str) -> None:
    cls = {"Sandbox": Sandbox, "AsyncSandbox": AsyncSandbox}[name]
    for row in rows():
        for call in row.ours:
            for method in re.findall(r"\b(?:sbx|Sandbox)\.(\w+)", call):
                assert hasattr(cls, method), (row.what, method)
