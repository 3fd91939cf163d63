"""Opening what a home knows of tokens and keyed requests."""

from __future__ import annotations

from dataclasses import dataclass

from torpor.access.ledger import Ledger, read_secret
from torpor.access.links import LinkKey
from torpor.access.tokens import TokenBook
from torpor.base.clock import Clock, SystemClock
from torpor.base.home import Home
from torpor.db.database import Database
from torpor.db.keyed_requests import KeyedRequestRows
from torpor.db.tokens import TokenRows


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens, the ledger and the key for links of one home."""

    tokens: TokenBook
    ledger: Ledger
    clock: Clock
    database: Database
    links: LinkKey

    def close(self) -> None:
        """Close the database."""
        self.database.close()


def open_access(home: Home, clock: Clock | None = None) -> Access:
    """Return the tokens, the ledger and the key for links of `home`. Blocks.

    Raises:
        DataDamaged, InsufficientResources: the home's database cannot be used.
    """
    clock = clock or SystemClock()
    database = Database.open(home.database)
    try:
        return Access(
            tokens=TokenBook(TokenRows(database), clock),
            ledger=Ledger(KeyedRequestRows(database), read_secret(home.fingerprint_key), clock),
            clock=clock,
            database=database,
            links=LinkKey(read_secret(home.preview_key)),
        )
    except BaseException:
        database.close()
        raise
