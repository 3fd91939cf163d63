"""Opening the database: SQLite by default, PostgreSQL by URL; brought to this version's tables at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, OperationalError

from torpor.errors import DataDamaged, InsufficientResources, TorporError

_AHEAD_BYTES = 1 << 20
"""What SQLite takes of the disk ahead, in its file and in its log: a row is 2 KiB."""
_CHECKPOINT_PAGES = 200
"""Pages of 4 KiB after which the log begins anew, before it has used up what was taken ahead."""


class Database:
    """A connection pool whose tables are current. Calls block; async code runs them in a thread."""

    def __init__(self, url: str) -> None:
        self.engine: Engine = create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_immediate)

    @classmethod
    def open(cls, path: Path) -> Database:
        """Open the SQLite file at `path` (made with mode 0600) and migrate it.

        Raises:
            DataDamaged: it is no SQLite file, is damaged, or was written by a newer version.
            InsufficientResources: the disk is full.
        """
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        database = cls(f"sqlite:///{path}")
        try:
            database.migrate()
        except (DatabaseError, OSError) as exc:
            database.close()
            raise translate(exc, str(path)) from exc
        except BaseException:
            database.close()
            raise
        with contextlib.suppress(DatabaseError):  # full already: what is there must do
            database.reserve()
        return database

    def reserve(self) -> None:
        """Make SQLite take disk space ahead, so that rows can still be changed when the disk is full.

        What was inserted and dropped leaves free pages in the file, and a log that is written over from its
        beginning after each checkpoint: small changes need no block of the disk that they do not have.
        """
        if self.engine.dialect.name != "sqlite":
            return
        with self.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE ahead (data BLOB)")
            connection.exec_driver_sql("INSERT INTO ahead VALUES (zeroblob(?))", (_AHEAD_BYTES,))
            connection.exec_driver_sql("DROP TABLE ahead")
        with self.engine.connect() as connection:
            raw = connection.connection.cursor()
            raw.execute("PRAGMA wal_checkpoint(RESTART)")
            raw.fetchall()
            raw.close()

    def migrate(self) -> None:
        """Bring the tables to this version, in one transaction."""
        from alembic import command
        from alembic.config import Config
        from alembic.util.exc import CommandError

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        with self.engine.begin() as connection:
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as exc:
                raise DataDamaged(
                    f"the database {self.engine.url.database} was written by another version of Torpor: {exc}",
                    hint="install the newer version again, or use another TORPOR_HOME",
                ) from exc

    def begin(self) -> Any:
        """Return a context with a connection in one transaction that is durable when it is left."""
        return self.engine.begin()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """Enter a connection in one transaction, durable when it is left; the database's own errors become ours."""
        try:
            with self.engine.begin() as connection:
                yield connection
        except DatabaseError as exc:
            raise translate(exc, str(self.engine.url.database)) from exc

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def translate(exc: Exception, where: str) -> TorporError:
    """Return the error of ours for a database's own."""
    text = str(getattr(exc, "orig", exc))
    if "full" in text or "No space left" in text:
        return InsufficientResources(
            f"the disk of the database {where} is full", hint="free disk space"
        )
    if isinstance(exc, OperationalError) and "locked" in text:
        return InsufficientResources(
            f"the database {where} is locked by another program", hint="end that program"
        )
    return DataDamaged(
        f"the database {where} cannot be used: {text}", hint="restore it from a backup"
    )


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we begin ourselves, below
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "busy_timeout=10000",
        f"wal_autocheckpoint={_CHECKPOINT_PAGES}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
