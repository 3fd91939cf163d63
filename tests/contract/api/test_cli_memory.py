"""`torpor memory`: tables for people, JSON for programs, with a daemon and on a file without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from torpor import Memory, Sandbox
from torpor.cli.app import app
from torpor.errors import Conflict, DataDamaged, InvalidRequest, NotFound

pytestmark = pytest.mark.usefixtures("server")
TEXT = "We decided to use Postgres for billing, not SQLite."


@pytest.fixture(autouse=True)
def _no_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORPOR_MEMORY_EMBEDDER", "none")


class Cli:
    """Runs `torpor memory …` on the daemon's memory, or on a file."""

    def __init__(self, *options: str) -> None:
        self._options = options

    def __call__(self, *words: str, code: int = 0, stdin: str | None = None) -> str:
        result = CliRunner().invoke(app, ["memory", *words, *self._options], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        self.stderr = result.stderr
        return result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture(params=["daemon", "file"])
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> Cli:
    if request.param == "daemon":
        return Cli()
    return Cli("--file", str(tmp_path / "agent.db"))


def test_a_wrong_fact_is_found_and_corrected(cli: Cli) -> None:
    episode = cli("record", TEXT, "-a", "hermes-1").strip()
    assert episode.startswith("ep_")
    assert "new" in cli("consolidate", "--dry-run")
    assert "nothing was written" in cli.stderr
    assert "Postgres" in cli("consolidate")
    shown = cli("recall", "which database for billing?")
    assert TEXT in shown
    assert "why: torpor memory explain rcl_" in cli.stderr
    found = cli.json("recall", "which database for billing?")
    fact = found["items"][0]["id"]
    assert TEXT in cli("explain", fact)
    told = cli("explain", found["id"])
    assert "BM25" in told
    assert TEXT in told
    right = cli("correct", fact, "SQLite", "--reason", "user corrected me").strip()
    assert [f["value"] for f in cli.json("facts", "billing")] == ["SQLite"]
    assert right in cli("why-not", fact, "which database")
    assert "user corrected me" in cli("history", fact)
    assert "SQLite" in cli("timeline", "billing")
    assert "SQLite" in cli("facts")
    assert "Postgres" in cli("facts", "--include", "corrected")
    assert "SQLite" in cli("diff", "1")
    assert TEXT[:20] in cli("episodes")
    assert "held back" in (cli("recall", "which database for billing?"), cli.stderr)[1]


def test_facts_conflicts_and_edits(cli: Cli) -> None:
    cli("remember", "user", "age", "41", "-a", "hermes-1", "--since", "2024-01-01")
    assert cli.json("facts", "user", "age")[0]["value"] == 41
    cli("remember", "user", "home", "Oslo", "--authority", "user_said")
    cli("remember", "user", "home", "Bern", "--authority", "agent_inferred")
    shown = cli("conflicts")
    assert "Oslo" in shown
    assert "Bern" in shown
    (conflict,) = cli.json("conflicts")
    oslo = next(m["id"] for m in conflict["members"] if m["value"] == "Oslo")
    cli("resolve", conflict["id"], oslo)
    assert cli("conflicts") == ""
    assert "resolved" in cli("conflicts", "--resolved")
    cli("pin", oslo)
    assert "pinned" in cli("facts", "user", "home")
    cli("pin", oslo, "--off")
    cli("retract", oslo, "--reason", "no")
    cli("restore", oslo)
    tx = cli.json("expire", oslo)["tx"]
    cli("revert", str(tx))
    new = cli("remember", "user", "lives", "Rome").strip()
    assert oslo in cli("supersede", oslo, new, "--reason", "moved")
    assert cli("effects") == ""


def test_stdin_and_json_values(cli: Cli) -> None:
    cli("record", "-", "-a", "x", stdin="from a pipe\n")
    assert cli.json("episodes")[0]["content"] == "from a pipe\n"
    cli("remember", "a", "b", '{"deep": [1, null]}')
    cli("remember", "a", "c", '"quoted"')
    values = {f["attribute"]: f["value"] for f in cli.json("facts")}
    assert values == {"b": {"deep": [1, None]}, "c": '"quoted"'}


def test_erasing(cli: Cli) -> None:
    cli("record", "Alice's number is 555-0100-4242.", "--subject", "alice", "-a", "hermes-1")
    cli("erase", "--subject", "alice", code=InvalidRequest.exit_code)
    assert "--yes" in cli.stderr
    assert "1 episode" in cli("erase", "--subject", "alice", "--dry-run")
    assert "bytes left     0" in cli("erase", "--subject", "alice", "--yes")
    assert cli("episodes") == ""
    assert cli("verify").startswith("ok            yes")
    cli("verify", "--expect", "0" * 64, code=DataDamaged.exit_code)


def test_a_name_that_nothing_has_gives_a_receipt(cli: Cli) -> None:
    cli("record", "Bob likes turnips.", "-a", "hermes-1")
    assert "nothing" in cli("erase", "--subject", "alice", "--dry-run")
    assert "nothing" in cli("erase", "--subject", "alice", "--yes")
    cli("erase", "--episode", "ep_x", "--yes", code=NotFound.exit_code)
    assert "turnips" in cli("episodes")


def test_exports_are_searched_where_they_can_be_read(tmp_path: Path) -> None:
    cli, old = Cli("--file", str(tmp_path / "m.db")), str(tmp_path / "old.jsonl")
    cli("record", "Alice's number is 555-0100-4242.", "-a", "hermes-1")
    cli("export", old)
    shown = cli("erase", "--subject", "alice", "--yes", "--export", old, code=DataDamaged.exit_code)
    assert "bytes left       0" in shown
    assert "left in exports" in shown
    Cli()(
        "erase",
        "--subject",
        "a",
        "--yes",
        "--export",
        old,
        "-a",
        "x",
        code=InvalidRequest.exit_code,
    )


def test_a_file_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    cli = Cli("--file", str(tmp_path / "typo.db"))
    for words in (("facts",), ("spaces",), ("verify",), ("export", str(tmp_path / "out"))):
        cli(*words, code=NotFound.exit_code)
        assert "record and remember make it" in cli.stderr
    assert list(tmp_path.iterdir()) == []
    cli("record", TEXT, "-a", "hermes-1")
    assert TEXT in cli("episodes")


def test_files(cli: Cli) -> None:
    cli("files", "create", "/memories/todo.md", "-", "-a", "hermes-1", stdin="a\nb")
    cli("files", "str-replace", "/memories/todo.md", "b", "c")
    cli("files", "insert", "/memories/todo.md", "2", "d")
    assert (
        cli("files", "view", "/memories/todo.md", "--lines", "2", "-1") == "     2\tc\n     3\td\n"
    )
    cli("files", "mv", "/memories/todo.md", "/memories/done.md")
    assert "/memories/done.md" in cli("files", "ls")
    cli("files", "rm", "/memories/done.md")
    assert cli("files", "ls") == ""


def test_branches(cli: Cli) -> None:
    cli("remember", "user", "home", "Oslo", "-a", "one")
    assert cli("fork", "two").startswith("br_")
    fact = cli("remember", "user", "likes", "jazz", "-a", "two").strip()
    branch = next(s["branch"] for s in cli.json("spaces") if s["agent"] == "two")
    assert fact in cli("merge", branch, "--dry-run", "-a", "one")
    assert fact in cli("merge", branch, "--take", fact, "-a", "one")
    assert "jazz" in cli("facts", "-a", "one")
    cli("switch", branch, "-a", "one", code=NotFound.exit_code)
    cli("facts", code=InvalidRequest.exit_code)
    assert "--agent one|two" in cli.stderr or "--agent two|one" in cli.stderr


def test_copies(cli: Cli, tmp_path: Path) -> None:
    cli("record", TEXT, "-a", "hermes-1")
    out = tmp_path / "out.jsonl"
    assert str(out) in cli("export", str(out))
    cli("import", str(out), code=Conflict.exit_code)
    copy = Cli("--file", str(tmp_path / "copy.db"))
    assert "rows" in copy("import", str(out))
    assert copy.json("episodes")[0]["content"] == TEXT
    assert copy("embed").strip() == "0"


def test_salvage(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Memory.open(path) as memory:
        memory.space("x").record(TEXT)
    cli = Cli()
    assert "lost  0" in cli("salvage", str(path), str(tmp_path / "out.jsonl")).replace("    ", "  ")
    copy = Cli("--file", str(tmp_path / "copy.db"))
    assert copy("import", str(tmp_path / "out.jsonl"), "--salvaged").endswith("lost  0\n")
    assert copy.json("episodes")[0]["content"] == TEXT


def test_who_is_meant(cli: Cli, tmp_path: Path) -> None:
    cli("facts", code=NotFound.exit_code)
    cli("record", "x", code=NotFound.exit_code)
    cli("facts", "-a", "nobody", code=NotFound.exit_code)
    assert cli("spaces") == ""
    cli("record", "x", "-a", "one")
    assert cli.json("spaces")[0]["agent"] == "one"
    cli("facts", "--known-at", "yesterday", code=InvalidRequest.exit_code)
    cli("facts", "--valid-at", "2026-01-01")


def test_a_sandbox_names_its_agent() -> None:
    sandbox = Sandbox.create(metadata={"agent": "hermes-1"})
    cli = Cli()
    cli("record", "hello", "-s", sandbox.id)
    assert cli.json("episodes", "-a", "hermes-1")[0]["content"] == "hello"
    cli("facts", "-s", sandbox.id, "-a", "hermes-1", code=InvalidRequest.exit_code)


def test_what_is_remembered_cannot_steer_the_terminal(cli: Cli) -> None:
    cli("record", "\x1b[2Jgone", "-a", "x")
    cli("files", "create", "/memories/a", "\x1b[2J")
    assert "\x1b" not in cli("episodes") + cli("files", "view", "/memories/a")


def test_the_bench_prints_one_object(tmp_path: Path) -> None:
    words = ("bench", "--updates", "200", "--size", "300", "--no-embedder")
    found = Cli().json(*words)
    assert set(found["generated"]) >= {
        "superseded_as_current",
        "wrongly_retired",
        "erased_bytes_left",
    }
    assert set(found["latency_ms"]["300"]) >= {"recall_p50", "recall_p95", "commit_p95"}
    assert "superseded_as_current" in Cli()(*words)


def test_a_rollback_says_what_memory_does() -> None:
    sandbox = Sandbox.create(metadata={"agent": "hermes-1"})
    cli = Cli()
    package = ("remember", "machine", "package")
    options = ("--scope", "machine", "--many", "--authority", "tool_observed", "-s", sandbox.id)
    cli(*package, "curl", *options)
    point = sandbox.snapshot()
    cli(*package, "ripgrep", *options)

    def torpor(*words: str) -> Result:
        return CliRunner().invoke(app, words)

    refused = torpor("rollback", sandbox.id, point.id, "--agent-memory", "forget")
    assert refused.exit_code == InvalidRequest.exit_code
    assert torpor("rollback", sandbox.id, point.id).exit_code == 0
    assert [f["value"] for f in cli.json("facts", "machine", "-s", sandbox.id)] == ["curl"]
    made = torpor("restore", point.id, "--agent-memory", "rewind", "-m", "agent=hermes-2")
    assert made.exit_code == 0
    assert "curl" in cli("facts", "-s", made.stdout.strip())
