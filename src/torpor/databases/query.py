"""Asking a database something as its clients do: through its URL. No program has to be started in its machine for it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from typing import Final

from torpor.databases import server
from torpor.databases.passwords import url_of
from torpor.errors import OperationTimeout, TorporError

ANSWER_S: Final = 60


async def server_version(password: str, port: int) -> str:
    """Return the server's version, asked through its URL; who gets it knows that the database can be used.

    Raises:
        OperationTimeout: it did not answer in time.
        TorporError: it refused; the message says why.
    """
    return await ask(password, port, ("SHOW server_version",))


async def begin_anew(password: str, port: int, verifier: str) -> str:
    """Make a copied server a database of its own, with the password that it still has; see `server.anew`.

    Raises as `server_version`.
    """
    return server.segment(await ask(password, port, server.anew(verifier)))


async def ask(password: str, port: int, statements: Sequence[str]) -> str:
    """Run statements one after the other, each by itself, and return the last value. Raises as `server_version`."""
    psycopg = await asyncio.to_thread(importlib.import_module, "psycopg")  # takes 0.2 s, once
    found = None
    try:
        async with await psycopg.AsyncConnection.connect(
            url_of(password, port),
            connect_timeout=ANSWER_S,
            application_name="torpor",
            autocommit=True,
        ) as connection:
            for statement in statements:
                cursor = await connection.execute(statement)
                found = await cursor.fetchone() if cursor.description else None
    except psycopg.errors.ConnectionTimeout as exc:
        raise OperationTimeout(f"the new database did not answer within {ANSWER_S} s") from exc
    except psycopg.Error as exc:
        raise TorporError(f"the database does not answer: {str(exc).strip()}") from exc
    return str(found[0]) if found else ""
