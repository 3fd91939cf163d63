"""What an object for a sandbox is made of: its id, what was last heard of it, and which daemon has it."""

from __future__ import annotations

from typing import Self

from typing_extensions import override

from torpor.errors import TorporError
from torpor.model import SandboxId, SandboxInfo
from torpor.sdk.client import Client, Connection, connection, quote_part, resolved


def made_by(name: str) -> str:
    """Return what is said to who calls the class itself."""
    return f"{name}() makes nothing; use {name}.create(...) for a new sandbox, {name}.get(id) for one that is there"


class AsyncHandle:
    """Knows one sandbox by its id."""

    def __init__(
        self,
        sandbox_id: str | None = None,
        info: SandboxInfo | None = None,
        client: Client | None = None,
    ) -> None:
        if sandbox_id is None:
            raise TypeError(made_by(type(self).__name__))
        self._id = SandboxId(sandbox_id)
        self._info = info
        self._client = resolved(client)

    @classmethod
    def handle(cls, sandbox_id: str, *, client: Client | None = None) -> Self:
        """Return an object for an id without asking the daemon whether it exists."""
        return cls(sandbox_id, None, client)

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} {self._info.state if self._info else 'unasked'}>"

    @property
    def id(self) -> SandboxId:
        """The sandbox's id, `sbx_…`."""
        return self._id

    @property
    def info(self) -> SandboxInfo:
        """What was so when the daemon was last asked; `refresh` asks again."""
        if self._info is None:
            raise TorporError(f"nothing is known of {self._id} yet", hint="call refresh()")
        return self._info

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{quote_part(self._id)}"
