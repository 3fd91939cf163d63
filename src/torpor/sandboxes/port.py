"""`EnginePort`: all that the server may ask. The engine implements it; tests of the server use a fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from torpor.guest.port import Guest
from torpor.model import (
    BuildEvent,
    OnTimeout,
    SandboxFilter,
    SandboxId,
    SandboxInfo,
    SandboxPage,
    SandboxSpec,
    TemplateInfo,
)


class EnginePort(Protocol):
    """Owns all sandboxes of one host. Every method may be called at any time from the daemon's loop.

    A caller that goes away (a cancelled request) does not undo a create, pause, resume or delete that has
    begun: the sandbox's own task finishes it.
    """

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        """Make a sandbox and return it `running`, its agent answering.

        Raises:
            InvalidRequest: a value of the spec cannot be right (sizes, names, TTL).
            NotFound: no such template; the hint says how to build it.
            InsufficientResources: no memory or disk on the host; nothing was made.
            HostNotReady: QEMU is missing or too old.
            VmmFailed, GuestUnreachable: it did not start; the sandbox is `failed` and can be looked at and deleted.
        """
        ...

    async def get(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Return a sandbox, also one that is `deleted` (for a day). Raises `NotFound`."""
        ...

    async def list(self, query: SandboxFilter) -> SandboxPage:
        """Return a page of sandboxes, newest first."""
        ...

    async def delete(self, sandbox_id: SandboxId) -> SandboxInfo:
        """End and remove a sandbox from any state; a deleted one is returned as it is. Raises `NotFound`."""
        ...

    async def pause(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Stop the vCPUs; RAM stays. Idempotent. Raises `WrongState`; after a failure it is running or `failed`."""
        ...

    async def resume(self, sandbox_id: SandboxId) -> SandboxInfo:
        """Let a paused sandbox run on. Idempotent. Raises `WrongState`."""
        ...

    async def set_ttl(
        self, sandbox_id: SandboxId, ttl_seconds: int | None, *, on_timeout: OnTimeout | None = None
    ) -> SandboxInfo:
        """Let the sandbox end `ttl_seconds` from now (None: never)."""
        ...

    def console(self, sandbox_id: SandboxId, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the machine's console log from its beginning; with `follow` go on until the machine ends."""
        ...

    def guest(self, sandbox_id: SandboxId) -> AbstractAsyncContextManager[Guest]:
        """Enter with the sandbox's connected guest, marked as in use until the context is left.

        Raises:
            NotFound: no such sandbox.
            WrongState: it is not running.
            GuestUnreachable: its agent does not answer.
        """
        ...

    async def templates(self) -> tuple[TemplateInfo, ...]:
        """Return the built templates, by name."""
        ...

    async def template(self, name: str) -> TemplateInfo:
        """Return one built template. Raises `NotFound`."""
        ...

    def build_template(
        self, name_or_recipe: str | Path, *, force: bool = False
    ) -> AsyncIterator[BuildEvent]:
        """Build a shipped template by name, or one from a recipe file; yields steps, the template last.

        A template with the same digest is returned at once unless `force`. A second call for one that is
        being built follows that build. The build goes on when the caller goes away.

        Raises:
            NotFound: no shipped recipe has that name, or no such file.
            InvalidRequest: the recipe is malformed; the message names file, key and what was wanted.
            BuildFailed: a step failed; facts have the step and the end of the log.
            HostNotReady: a tool is missing.
        """
        ...

    async def delete_template(self, name: str) -> None:
        """Forget a template; refused with `Conflict` while a sandbox needs it."""
        ...

    async def doctor(self) -> dict[str, object]:
        """Return what `torpor doctor --json` prints."""
        ...
