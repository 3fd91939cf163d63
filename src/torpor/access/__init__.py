"""Who may come in, in which workspace, and which requests were carried out already. Knows no HTTP."""

from torpor.access.ledger import Ledger
from torpor.access.opening import Access, open_access
from torpor.access.principal import Principal
from torpor.access.tokens import TokenBook

__all__ = ["Access", "Ledger", "Principal", "TokenBook", "open_access"]
