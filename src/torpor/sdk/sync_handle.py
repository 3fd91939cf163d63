"""What a synchronous object for a sandbox is made of: the asynchronous one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from typing_extensions import override

from torpor.model import SandboxId, SandboxInfo
from torpor.sdk.client import Client
from torpor.sdk.handle import AsyncHandle, made_by

if TYPE_CHECKING:
    from torpor.sdk.sandbox import AsyncSandbox


class Handle:
    """Knows one sandbox by its id."""

    def __init__(self, sandbox: AsyncSandbox | None = None) -> None:
        if not isinstance(sandbox, AsyncHandle):
            raise TypeError(made_by(type(self).__name__))
        self._sandbox = sandbox

    @classmethod
    def handle(cls, sandbox_id: str, *, client: Client | None = None) -> Self:
        """Return an object for an id without asking the daemon whether it exists."""
        from torpor.sdk.sandbox import AsyncSandbox

        return cls(AsyncSandbox.handle(sandbox_id, client=client))

    @override
    def __repr__(self) -> str:
        return repr(self._sandbox).replace("AsyncSandbox", type(self).__name__)

    @property
    def id(self) -> SandboxId:
        """The sandbox's id, `sbx_…`."""
        return self._sandbox.id

    @property
    def info(self) -> SandboxInfo:
        """What was so when the daemon was last asked; `refresh` asks again."""
        return self._sandbox.info
