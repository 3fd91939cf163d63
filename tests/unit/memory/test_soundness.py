"""An export that someone wrote anew, chain and checksum and all: what no memory can have is refused."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.memory.test_jsonl import fill
from torpor.errors import DataDamaged
from torpor.memory import Memory, chain
from torpor.memory.jsonl import encode
from torpor.memory.rows import EXPORTED, TABLES, Txn, columns

Rows = list[dict[str, Any]]
TABLE = {TABLES[table]: table for table in EXPORTED}


@pytest.fixture
def exported(path: Path, tmp_path: Path) -> list[bytes]:
    with Memory.open(path) as memory:
        fill(memory)
        memory.space("a").record("My home is Rome.", "recalled")
        memory.space("a").erase(episode=memory.space("a").record("to be forgotten").id)
        memory.export(tmp_path / "honest.jsonl")
    return (tmp_path / "honest.jsonl").read_bytes().splitlines(keepends=True)


def summed(body: bytes) -> bytes:
    return body + json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"


def forged(lines: list[bytes], change: Callable[[Rows], Rows | None]) -> bytes:
    """Return the export with changed rows, and with hashes and checksum that fit them."""
    top, rows = json.loads(lines[0]), [json.loads(line) for line in lines[1:-1]]
    rows = change(rows) or rows
    made: list[tuple[Any, ...]] = []
    digests: dict[Any, list[str]] = {}
    for row in rows:
        table = TABLE[row["table"]]
        values = [row[c] for c in columns(table)]
        if values[-1] is not None and table is not Txn:
            values[-1] = base64.b64decode(values[-1])
        made.append(table._make(values))  # type: ignore[attr-defined]  # a NamedTuple
        if table is not Txn:
            digests.setdefault(row["tx"], []).append(chain.row_digest(made[-1]))
    for row in rows:
        if row["table"] == "tombstone":
            digests.setdefault(row["of_tx"], []).append(row["digest"])
    previous, body = chain.GENESIS, b""
    for found in made:
        line = found
        if isinstance(found, Txn):
            salt = None if found.salt is None else base64.b64decode(found.salt)
            txn = found._replace(prev_hash=previous, root=chain.root_of(digests.get(found.tx, [])))
            line = txn._replace(hash=chain.txn_hash(txn), salt=salt)
            previous = chain.txn_hash(txn)
        body += encode(line)
    body = json.dumps({**top, "head": previous}).encode() + b"\n" + body
    return summed(body)


def put(table: str, **values: Any) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        next(r for r in rows if r["table"] == table).update(values)

    return change


def without(table: str) -> Callable[[Rows], Rows]:
    return lambda rows: [r for r in rows if r["table"] != table]


def words_of_recalled_text(rows: Rows) -> None:
    given_out = next(r["id"] for r in rows if r.get("source_kind") == "recalled")
    put("evidence", episode=given_out, start=0, stop=4)(rows)


def ancestor_of_itself(rows: Rows) -> None:
    put("branch", parent=next(r["id"] for r in rows if r["table"] == "branch"))(rows)


def twice(rows: Rows) -> Rows:
    return [*rows, next(r for r in rows if r["table"] == "erasure")]


FORGERIES: dict[str, Callable[[Rows], Rows | None]] = {
    "a span past the words": put("evidence", stop=9999),
    "a span backwards": put("evidence", start=5, stop=2),
    "words of no episode": put("evidence", episode="ep_none"),
    "words for no fact": put("evidence", fact="fact_none"),
    "words of recalled text": words_of_recalled_text,
    "facts without words": without("evidence"),
    "other content": put("episode", content="My editor is ed."),
    "a source that is none": put("episode", source_kind="king"),
    "subjects that are none": put("episode", subjects="5"),
    "an authority that is none": put("fact", authority="god"),
    "a file that is none": put("fact", kind="file"),
    "a value that is no JSON": put("fact", value="{"),
    "a value in another form": put("fact", value='  "vim"'),
    "a key of another attribute": put("fact", key="other"),
    "a confidence that is none": put("fact", confidence=7.0),
    "a number too large": put("fact", valid_from=10**30),
    "a time that is none": put("fact", valid_from=-(10**17)),
    "text for a time": put("fact", valid_from="yesterday"),
    "a list for a text": put("fact", text=["a"]),
    "no text": put("fact", text=None),
    "a status that is none": put("state", status="weird"),
    "a state of nothing": put("state", object="ep_none"),
    "a branch that is not there": put("branch", parent="br_none"),
    "a branch that is its own ancestor": ancestor_of_itself,
    "no branches": without("branch"),
    "an epoch that is none": put("head", epoch="x"),
    "an agent that is none": put("head", agent="two\nlines"),
    "a mark of the future": put("watermark", at_tx=1 << 40),
    "a row twice": twice,
}


def change_nothing(rows: Rows) -> None:
    pass


def test_what_was_only_written_anew_is_taken(exported: list[bytes], tmp_path: Path) -> None:
    assert forged(exported, change_nothing).splitlines()[1:] == b"".join(exported).splitlines()[1:]


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_export_is_refused(name: str, exported: list[bytes], tmp_path: Path) -> None:
    made = forged(exported, FORGERIES[name])
    (tmp_path / "forged.jsonl").write_bytes(made)
    with Memory.open(tmp_path / "new.db") as memory:
        with pytest.raises(DataDamaged, match="does not hold together"):
            memory.import_(tmp_path / "forged.jsonl")
        assert memory.agents() == ()
        memory.import_(tmp_path / "forged.jsonl", verify=False)
        for agent in memory.agents():
            mem = memory.space(agent)
            facts = mem.facts(include=["superseded", "corrected", "retracted", "suspended"])
            for fact in facts:
                mem.explain(fact)
                mem.history(fact.id)
            mem.episodes()
            mem.recall("editor home")
            mem.record("it goes on")
            assert mem.recall("goes on").items


@pytest.mark.parametrize("letter", ["\\ud800", "\\u0000"])
def test_text_that_is_no_text_is_refused(
    letter: str, exported: list[bytes], tmp_path: Path
) -> None:
    made = forged(exported, put("fact", text="@@"))
    body = made[: made.rindex(b'{"sha256"')].replace(b"@@", letter.encode())
    (tmp_path / "forged.jsonl").write_bytes(summed(body))
    with (
        Memory.open(tmp_path / "new.db") as memory,
        pytest.raises(DataDamaged, match="text is no text"),
    ):
        memory.import_(tmp_path / "forged.jsonl")


def test_an_export_whose_chain_ends_elsewhere_is_refused(
    exported: list[bytes], tmp_path: Path
) -> None:
    head = json.loads(exported[0])["head"].encode()
    first = exported[0].replace(head, b"0" * 64)
    (tmp_path / "forged.jsonl").write_bytes(summed(b"".join([first, *exported[1:-1]])))
    with (
        Memory.open(tmp_path / "new.db") as memory,
        pytest.raises(DataDamaged, match="the chain ends at"),
    ):
        memory.import_(tmp_path / "forged.jsonl")
