"""Asking a database something as its clients do: through its URL."""

from __future__ import annotations

import asyncio
import importlib
from typing import Final

from torpor.databases.passwords import url_of
from torpor.errors import OperationTimeout, TorporError

ANSWER_S: Final = 60


async def server_version(password: str, port: int, *, within_s: int = ANSWER_S) -> str:
    """Return the server's version, asked through its URL; who gets it knows that the database can be used.

    Raises:
        OperationTimeout: it did not answer in time.
        TorporError: it refused; the message says why.
    """
    psycopg = await asyncio.to_thread(importlib.import_module, "psycopg")  # takes 0.2 s, once

    try:
        async with await psycopg.AsyncConnection.connect(
            url_of(password, port), connect_timeout=within_s, application_name="torpor"
        ) as connection:
            cursor = await connection.execute("SHOW server_version")
            found = await cursor.fetchone()
    except psycopg.errors.ConnectionTimeout as exc:
        raise OperationTimeout(f"the new database did not answer within {within_s} s") from exc
    except psycopg.Error as exc:
        raise TorporError(f"the database does not answer: {str(exc).strip()}") from exc
    return str(found[0]) if found else ""
