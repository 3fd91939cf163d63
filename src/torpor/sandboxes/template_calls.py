"""What may be asked about templates; see `EnginePort` for what each call promises."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from torpor.model import BuildEvent, TemplateInfo
from torpor.sandboxes.needs import Needs
from torpor.sandboxes.parts import Parts
from torpor.sandboxes.promises import Promises
from torpor.sandboxes.warm import WarmTemplates

_IMAGE_SHARE = 0.9
"""Of a template's build: the image; the rest is its snapshot."""


class TemplateCalls(ABC):
    """The engine's answers about templates."""

    _parts: Parts
    _needs: Needs
    _promises: Promises
    _warm: WarmTemplates

    @abstractmethod
    async def _look_at_host(self) -> None:
        """Raise `HostNotReady` unless machines can be started."""

    async def templates(self) -> tuple[TemplateInfo, ...]:
        """Return the built templates, by name."""
        return await asyncio.to_thread(self._parts.templates.list)

    async def template(self, name: str) -> TemplateInfo:
        """Return one built template."""
        return (await asyncio.to_thread(self._parts.templates.get, name)).info

    async def build_template(
        self, name_or_recipe: str | Path, *, force: bool = False
    ) -> AsyncIterator[BuildEvent]:
        """Build a template and take its snapshot; yields the steps."""
        async for event in self._parts.templates.build(name_or_recipe, force=force):
            if event.template is None:
                yield replace(event, fraction=event.fraction * _IMAGE_SHARE)
                continue
            await self._look_at_host()
            yield BuildEvent(
                step="snapshot",
                message="booting for the template's snapshot",
                fraction=_IMAGE_SHARE,
            )
            await self._warm.take(
                await asyncio.to_thread(self._parts.templates.get, event.template.name)
            )
            self._parts.events.record("template", event.template.name, "built", None)
            yield event

    async def delete_template(self, name: str) -> None:
        """Forget a template that no sandbox needs."""
        async with self._promises.turn:  # no create may begin on it meanwhile
            await asyncio.to_thread(
                self._parts.templates.delete, name, needed=self._needs.template_users()
            )
            await self._warm.drop_stale()
        self._parts.events.record("template", name, "deleted", None)
