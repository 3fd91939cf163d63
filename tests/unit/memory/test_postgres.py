"""Memory on PostgreSQL: the same answers as in a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.unit.memory.clock import FakeClock, day
from torpor.errors import Busy, HostNotReady, InvalidRequest
from torpor.memory import Memory

if TYPE_CHECKING:
    from torpor.memory.postgres import PostgresStore


def test_a_memory_works_there_as_in_a_file(
    postgres: Callable[[], PostgresStore], clock: FakeClock
) -> None:
    with Memory(postgres(), clock=clock) as memory:
        mem = memory.space("a")
        episode = mem.record("We decided to use Postgres for billing, not SQLite.")
        mem.consolidate()
        found = mem.recall("which database for billing?")
        assert found.items[0].text == "We decided to use Postgres for billing, not SQLite."
        right = mem.correct(found.items[0].id, "SQLite", "misheard")
        assert [i.id for i in mem.recall("billing")] == [right.id]
        mem.remember("user", "home", "Rome", authority="user_said", valid_from=day(-9))
        mem.remember("user", "home", "Oslo", authority="user_said", valid_from=day(-5))
        assert [f.value for f in mem.facts("user", "home")] == ["Oslo"]
        assert [f.value for f in mem.facts("user", "home", valid_at=day(-7))] == ["Rome"]
        mem.watermark("snap")
        mem.remember("machine", "package", "x", scope="machine")
        mem.on_restore("snap")
        assert mem.facts("machine") == []
        receipt = mem.erase(episode=episode.id)
        assert receipt.bytes_left == 0
        assert receipt.verified_at is not None
        assert memory.verify_chain().ok
        with pytest.raises(InvalidRequest):
            mem.record("nul \0")


def test_an_address_opens_the_store(postgres_dsn: str) -> None:
    folder = postgres_dsn.split()[0].partition("=")[2]
    url = f"postgresql:///postgres?host={folder}&user=postgres"
    with Memory.open(url) as memory:
        memory.space("a").remember("x", "y", 1)
    with Memory.open(url) as memory:
        assert [f.value for f in memory.space("a").facts()] == [1]
    with pytest.raises(HostNotReady):
        Memory.open("postgresql:///postgres?host=/nonexistent&user=x")


def test_a_second_writer_waits_and_then_is_told(
    postgres: Callable[[], PostgresStore], postgres_dsn: str
) -> None:
    from torpor.memory.postgres import PostgresStore

    first = postgres()
    second = PostgresStore(postgres_dsn, schema=first._schema, busy_timeout_s=0.1)
    with Memory(first) as one, Memory(second) as two:
        a, b = one.space("a"), two.space("a")
        a.record("one")
        with first.transaction(), pytest.raises(Busy):
            b.record("not now")
        b.record("two")
        assert [e.content for e in a.episodes()] == ["one", "two"]
        assert one.verify_chain().ok


def test_a_schema_name_is_checked(postgres_dsn: str) -> None:
    from torpor.memory.postgres import PostgresStore

    with pytest.raises(InvalidRequest):
        PostgresStore(postgres_dsn, schema="x; DROP SCHEMA public")
