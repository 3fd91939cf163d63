from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import inspect

from tests.fakes.records import T0, make_row
from torpor.db.database import Database
from torpor.db.sandboxes import MachineLayers, SandboxRows
from torpor.db.tables import metadata
from torpor.errors import DataDamaged, InvalidRequest
from torpor.model import SandboxFilter, SandboxState, SnapshotId


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[SandboxRows]:
    opened = SandboxRows(Database.open(tmp_path / "t.db"))
    yield opened
    opened.close()


def test_a_row_comes_back_as_it_was(rows: SandboxRows) -> None:
    row = replace(
        make_row(
            ttl_seconds=60,
            expires_at=T0 + timedelta(seconds=60),
            error="ü\n",
            boot_mode="cold",
            boot_ms=12,
        ),
        epoch=7,
        ttl_left=timedelta(seconds=1, microseconds=5),
        layers=MachineLayers(
            disk=("lyr_1", "lyr_2"), active="lyr_3", image=SnapshotId("snap_1"), ram=("lyr_4",)
        ),
    )
    rows.insert(row)
    assert rows.get(row.info.id) == row
    changed = row.with_info(state=SandboxState.FAILED, expires_at=None)
    rows.save(changed)
    assert rows.get(row.info.id) == changed
    assert rows.get(make_row().info.id) is None


def test_pages_show_every_match_once_newest_first(rows: SandboxRows) -> None:
    made = []
    for number in range(25):
        at = T0 + timedelta(seconds=number // 2)  # pairs share their time
        row = make_row(
            created_at=at,
            metadata={"odd": str(number % 2)},
            template="base" if number < 20 else "agent",
        )
        rows.insert(row)
        made.append(row.info)
    made.sort(key=lambda i: (i.created_at, i.id), reverse=True)
    for query, want in (
        (SandboxFilter(limit=4), made),
        (
            SandboxFilter(limit=3, metadata={"odd": "1"}),
            [i for i in made if i.metadata["odd"] == "1"],
        ),
        (SandboxFilter(limit=5, template="agent"), [i for i in made if i.template == "agent"]),
        (SandboxFilter(limit=100, states=(SandboxState.PAUSED,)), []),
    ):
        seen, cursor = [], None
        while True:
            page = rows.page(replace(query, cursor=cursor))
            assert len(page.items) <= query.limit
            seen += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == want


@pytest.mark.parametrize("cursor", ["x", "äöü", "====", "MTIz!", "bm90IGEgbnVtYmVy"])
def test_a_cursor_that_is_not_ours_is_refused(rows: SandboxRows, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="not one of ours"):
        rows.page(SandboxFilter(cursor=cursor))


def test_deleted_rows_stay_for_a_while_and_are_not_listed(rows: SandboxRows) -> None:
    row = make_row()
    rows.insert(row)
    rows.mark_deleted(row.with_info(state=SandboxState.DELETED), T0)
    assert rows.living() == []
    assert rows.page(SandboxFilter()).items == ()
    assert len(rows.page(SandboxFilter(states=(SandboxState.DELETED,))).items) == 1
    assert rows.templates_in_use() == set()
    assert rows.forget_deleted(T0) == 0
    assert rows.forget_deleted(T0 + timedelta(seconds=1)) == 1
    assert rows.get(row.info.id) is None


def test_migrated_tables_are_those_of_the_code(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "t.db")
    found = inspect(database.engine)
    for table in metadata.sorted_tables:
        columns = {
            c["name"]: (str(c["type"]), c["nullable"]) for c in found.get_columns(table.name)
        }
        assert columns == {c.name: (str(c.type), bool(c.nullable)) for c in table.columns}
        assert {i["name"] for i in found.get_indexes(table.name)} == {i.name for i in table.indexes}
    database.close()
    Database.open(tmp_path / "t.db").close()  # a second start finds nothing to do
    assert stat.S_IMODE((tmp_path / "t.db").stat().st_mode) == 0o600


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(b"something else entirely, not SQLite" * 100)
    with pytest.raises(DataDamaged, match="cannot be used"):
        Database.open(path)
    assert path.read_bytes().startswith(b"something else")


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    Database.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(DataDamaged, match="another version"):
        Database.open(path)
