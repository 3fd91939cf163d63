"""Memory over REST: each verb, its errors in the one shape, its limits."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.contract.api.conftest import Rest
from tests.fakes.serving import ServerThread
from torpor.memory.verbs import VERBS
from torpor.server.openapi import document

HERMES = {"agent": "hermes-1"}
TEXT = "We decided to use Postgres for billing, not SQLite."


def post(rest: Rest, verb: str, **params: Any) -> Any:
    return rest.ok("POST", f"/v1/memory/{verb}", json={**HERMES, **params})


def get(rest: Rest, verb: str, **params: Any) -> Any:
    return rest.ok("GET", f"/v1/memory/{verb}", params={**HERMES, **params})


def test_from_words_to_a_fact_and_back(rest: Rest) -> None:
    episode = post(rest, "record", content=TEXT)
    plan = post(rest, "consolidate", dry_run=True)
    assert [(i["action"], i["value"]) for i in plan["items"]] == [("new", "Postgres")]
    assert get(rest, "facts")["items"] == []
    assert post(rest, "apply", plan=plan)["tx"] is not None
    found = post(rest, "recall", query="which database for billing?", k=5, token_budget=400)
    assert found["items"][0]["text"] == TEXT
    told = get(rest, "explain", target=found["id"])
    assert told["facts"][0]["evidence"][0]["episode"] == episode["id"]
    fact = found["items"][0]["id"]
    right = post(rest, "correct", fact_id=fact, value="SQLite", reason="user corrected me")
    assert [f["value"] for f in get(rest, "facts", subject="billing")["items"]] == ["SQLite"]
    assert post(rest, "why_not", fact_id=fact, query="database")["replaced_by"] == right["id"]
    assert [c["kind"] for c in get(rest, "history", fact_id=fact)["items"]][-1] == "correct"
    assert get(rest, "timeline", subject="billing")["items"][0]["fact"]["id"] == right["id"]
    tx = get(rest, "space")["tx"]
    changed = get(rest, "diff", tx1=1, tx2=tx)
    assert [f["id"] for f in changed["added"]] == [right["id"]]


def test_what_is_taken_back_can_be_had_again(rest: Rest) -> None:
    episode = post(rest, "record", content="My home is the Moon.")
    post(rest, "consolidate")
    done = post(rest, "retract", target=episode["id"], reason="was a joke")
    assert len(done["suspended"]) == 1
    assert get(rest, "facts")["items"] == []
    post(rest, "restore", target=episode["id"])
    (fact,) = get(rest, "facts")["items"]
    post(rest, "retract", target=fact["id"], reason="no")
    tx = get(rest, "space")["tx"]
    assert post(rest, "revert", tx=tx)["changed"] == [fact["id"]]


def test_values_keep_their_types(rest: Rest) -> None:
    values: list[Any] = ["5", 5, 5.5, True, None, [1, "a"], {"k": {"deep": [None]}}]
    for number, value in enumerate(values):
        made = post(rest, "remember", subject="thing", attribute=f"a{number}", value=value)
        assert made["value"] == value
        assert type(made["value"]) is type(value)


def test_many_at_once_or_none(rest: Rest) -> None:
    made = post(rest, "record_many", episodes=[{"content": "one"}, {"content": "two"}])
    assert [e["content"] for e in made["items"]] == ["one", "two"]
    body = {**HERMES, "episodes": [{"content": "three"}, {"content": ""}]}
    rest.fails("POST", "/v1/memory/record_many", 400, "request.invalid", json=body)
    assert len(get(rest, "episodes")["items"]) == 2
    facts = [{"subject": "s", "attribute": a, "value": 1} for a in "ab"]
    assert len(post(rest, "remember_many", facts=facts)["items"]) == 2


def test_an_extractor_elsewhere(rest: Rest) -> None:
    episode = post(rest, "record", content="Bob likes jazz.")
    (unread,) = get(rest, "unread", extractor="mine@1")["items"]
    assert unread["id"] == episode["id"]
    good = {
        "episode": episode["id"],
        "subject": "bob",
        "attribute": "likes",
        "value": "jazz",
        "quote": "likes jazz",
    }
    made = post(
        rest,
        "consolidate",
        extractor="mine@1",
        episodes=[episode["id"]],
        candidates=[good, {**good, "quote": "hates jazz"}],
    )
    assert [i["action"] for i in made["items"]] == ["new", "rejected"]
    assert get(rest, "unread", extractor="mine@1")["items"] == []


def test_conflicts_are_shown_and_settled(rest: Rest) -> None:
    one = post(
        rest, "remember", subject="user", attribute="home", value="Oslo", authority="user_said"
    )
    post(rest, "remember", subject="user", attribute="home", value="Bern")
    (conflict,) = get(rest, "conflicts")["items"]
    assert {f["value"] for f in conflict["members"]} == {"Oslo", "Bern"}
    post(rest, "resolve", conflict_id=conflict["id"], choice=one["id"])
    assert [f["value"] for f in get(rest, "facts")["items"]] == ["Oslo"]


def test_pins_ends_and_effects(rest: Rest) -> None:
    fact = post(rest, "remember", subject="user", attribute="name", value="Ann")
    post(rest, "pin", fact_id=fact["id"])
    assert get(rest, "fact", fact_id=fact["id"])["pinned"]
    post(rest, "expire", fact_id=fact["id"])
    assert get(rest, "facts")["items"] == []
    assert get(rest, "facts", include=["expired", "superseded"])["items"] != []
    assert post(rest, "effect", key="mail-7", what="sent it")["fresh"]
    assert not post(rest, "effect", key="mail-7", what="sent it")["fresh"]
    post(rest, "finish_effect", key="mail-7")
    assert [e["outcome"] for e in get(rest, "effects")["items"]] == ["done"]


def test_an_erasure_leaves_a_receipt_and_no_byte(rest: Rest, server: ServerThread) -> None:
    post(rest, "record", content="Alice's number is 555-0100-4242.", subjects=["alice"])
    post(rest, "fork", new_agent="hermes-2")
    assert post(rest, "erase", subject="alice", dry_run=True)["counts"]["episode"] == 1
    receipt = post(rest, "erase", subject="alice")
    assert (receipt["bytes_left"], receipt["verified_at"] is not None) == (0, True)
    folder = server.engine.memories.scratch
    for path in folder.glob("memory.db*"):
        assert b"555-0100-4242" not in path.read_bytes()
    other = {"agent": "hermes-2"}
    assert rest.ok("GET", "/v1/memory/episodes", params=other)["items"] == []
    assert rest.ok("GET", "/v1/memory/verify_chain")["ok"]


def test_branches_of_an_agent(rest: Rest) -> None:
    post(rest, "remember", subject="user", attribute="home", value="Oslo")
    post(rest, "watermark", snapshot_id="elsewhere-1")
    post(rest, "remember", subject="user", attribute="home", value="Bern")
    first = get(rest, "space")
    done = post(rest, "on_restore", snapshot_id="elsewhere-1", policy="rewind")
    assert [f["value"] for f in get(rest, "facts")["items"]] == ["Oslo"]
    assert done["epoch"] == first["epoch"] + 1
    stale = {**HERMES, "content": "x", "epoch": first["epoch"]}
    rest.fails("POST", "/v1/memory/record", 409, "object.wrong_state", json=stale)
    post(rest, "record", content="x", epoch=done["epoch"])
    post(rest, "switch", to_branch=first["branch"])
    assert [f["value"] for f in get(rest, "facts")["items"]] == ["Bern"]
    child = post(rest, "fork", new_agent="hermes-3")
    fact = rest.ok(
        "POST",
        "/v1/memory/remember",
        json={"agent": "hermes-3", "subject": "user", "attribute": "likes", "value": "jazz"},
    )
    plan = get(rest, "plan_merge", source=child["branch"])
    assert [f["id"] for f in plan["facts"]] == [fact["id"]]
    post(rest, "merge", source=child["branch"], take=[fact["id"]])
    assert {f["value"] for f in get(rest, "facts", subject="user")["items"]} == {"Bern", "jazz"}


def test_files(rest: Rest) -> None:
    post(rest, "files/create", path="/memories/a.md", file_text="one\ntwo")
    post(rest, "files/str_replace", path="/memories/a.md", old_str="two", new_str="2")
    post(rest, "files/insert", path="/memories/a.md", insert_line=2, insert_text="three")
    shown = post(rest, "files/view", path="/memories/a.md", view_range=[2, -1])["text"]
    assert shown == "     2\t2\n     3\tthree"
    post(rest, "files/rename", old_path="/memories/a.md", new_path="/memories/b.md")
    assert [f["path"] for f in get(rest, "files/files")["items"]] == ["/memories/b.md"]
    post(rest, "files/delete", path="/memories/b.md")
    out = {**HERMES, "path": "/memories/../etc/passwd", "file_text": "x"}
    rest.fails("POST", "/v1/memory/files/create", 400, "request.invalid", json=out)


def test_a_sandbox_has_the_memory_of_its_agent(rest: Rest) -> None:
    named, unnamed = rest.create(metadata=HERMES), rest.create()
    rest.ok("POST", "/v1/memory/record", json={"sandbox_id": named, "content": "hello"})
    assert len(get(rest, "episodes")["items"]) == 1
    found = rest.ok("GET", "/v1/memory/space", params={"sandbox_id": unnamed})
    assert found["agent"] == unnamed
    everyone = rest.ok("GET", "/v1/memory/spaces")["items"]
    assert [s["agent"] for s in everyone] == sorted(["hermes-1", unnamed])


def test_export_and_import(rest: Rest) -> None:
    post(rest, "record", content=TEXT)
    reply = rest.http.get("/v1/memory/export")
    assert reply.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in reply.content.splitlines()]
    assert lines[0]["format"] == "torpor-memory"
    assert any(line.get("content") == TEXT for line in lines)
    rest.fails("PUT", "/v1/memory/import", 409, "object.conflict", content=reply.content)


def test_an_import_is_whole_or_nothing(rest: Rest, server: ServerThread) -> None:
    post(rest, "record", content=TEXT)
    data = rest.http.get("/v1/memory/export").content
    server.run(server.engine.aclose())
    server.engine.reset()
    rest.fails("PUT", "/v1/memory/import", 500, "data.damaged", content=data[:-40])
    assert rest.ok("GET", "/v1/memory/spaces")["items"] == []
    lines = data.splitlines(keepends=True)
    cut = lines[:-1][: len(lines) // 2]
    sums = {"sha256": hashlib.sha256(b"".join(cut)).hexdigest()}
    half = b"".join(cut) + json.dumps(sums).encode() + b"\n"
    rest.fails("PUT", "/v1/memory/import", 500, "data.damaged", content=half)
    assert rest.ok("PUT", "/v1/memory/import?verify=false", content=half)["rows"] > 0
    server.run(server.engine.aclose())
    server.engine.reset()
    assert rest.ok("PUT", "/v1/memory/import", content=data)["rows"] > 0
    assert get(rest, "episodes")["items"][0]["content"] == TEXT
    left = [p.name for p in server.engine.memories.scratch.iterdir() if "memory.db" not in p.name]
    assert left == []


BAD = [
    ("record", {"content": ""}, 400, "request.invalid"),
    ("record", {"content": "a\0b"}, 400, "request.invalid"),
    ("record", {"content": "x" * ((1 << 20) + 1)}, 413, "request.limit_exceeded"),
    ("record", {"content": "x", "source_kind": "gossip"}, 400, "request.invalid"),
    ("record", {"content": "x", "occurred_at": "2026-01-01T00:00:00"}, 400, "request.invalid"),
    ("record", {"content": "x", "nonsense": 1}, 400, "request.invalid"),
    ("record", {"content": "x", "agent": "a\nb"}, 400, "request.invalid"),
    ("record", {"content": "x", "sandbox_id": "sbx_x"}, 400, "request.invalid"),
    ("record", {"content": "x", "branch": "br_none"}, 404, "object.not_found"),
    ("recall", {"query": ""}, 400, "request.invalid"),
    ("recall", {"query": "x", "k": 0}, 400, "request.invalid"),
    ("recall", {"query": "x", "known_at": -1}, 400, "request.invalid"),
    ("correct", {"fact_id": "fact_none", "value": 1, "reason": "x"}, 404, "object.not_found"),
    ("retract", {"target": "ep_none", "reason": "x"}, 404, "object.not_found"),
    ("erase", {"episode": "ep_none"}, 404, "object.not_found"),
    ("revert", {"tx": 10**30}, 400, "request.invalid"),
    ("record", {"content": "x", "occurred_at": "0001-01-01T00:00:00+05:00"}, 400, "request.invalid"),
    ("erase", {}, 400, "request.invalid"),
    ("consolidate", {"episodes": ["ep_1"]}, 400, "request.invalid"),
    ("remember", {"subject": "s", "attribute": "a"}, 400, "request.invalid"),
    ("remember", {"subject": "s", "attribute": "a", "value": 1, "confidence": 7}, 400, "request.invalid"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "params", "status", "code"), BAD, ids=lambda v: str(v)[:40])
def test_bad_input_is_a_typed_error(
    rest: Rest, verb: str, params: dict[str, Any], status: int, code: str
) -> None:
    post(rest, "record", content="something that is there")
    before = get(rest, "space")["tx"]
    rest.fails("POST", f"/v1/memory/{verb}", status, code, json={**HERMES, **params})
    assert get(rest, "space")["tx"] == before


def test_an_unknown_agent_gets_no_space_by_being_asked_about(rest: Rest) -> None:
    rest.fails("GET", "/v1/memory/facts", 404, "object.not_found", params={"agent": "nobody"})
    body = {"agent": "nobody", "query": "x"}
    rest.fails("POST", "/v1/memory/recall", 404, "object.not_found", json=body)
    assert rest.ok("GET", "/v1/memory/spaces")["items"] == []
    rest.fails("GET", "/v1/memory/facts", 400, "request.invalid")


def test_a_value_is_not_repeated_in_an_error(rest: Rest) -> None:
    body = {**HERMES, "content": ["a secret"]}
    assert "secret" not in json.dumps(
        rest.fails("POST", "/v1/memory/record", 400, "request.invalid", json=body)
    )


def test_a_memory_that_cannot_be_opened_is_its_own_trouble(
    rest: Rest, server: ServerThread
) -> None:
    path = server.engine.memories.scratch / "memory.db"
    path.write_bytes(b"no database at all, but long enough to be looked at")
    body = {**HERMES, "content": "x"}
    failure = rest.fails("POST", "/v1/memory/record", 500, "data.damaged", json=body)
    assert "salvage" in failure["hint"]
    rest.create()
    path.unlink()
    post(rest, "record", content="x")


def test_every_verb_is_a_route() -> None:
    paths = json.loads(document())["paths"]
    for name, verb in VERBS.items():
        operation = paths[f"/v1/memory/{name.replace('.', '/')}"]
        assert set(operation) == {"get" if verb.reads_by_get else "post"}
