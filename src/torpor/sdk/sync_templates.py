"""The synchronous face of templates; `torpor.sdk.templates` says what each call does."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from pathlib import Path

from torpor.errors import TorporError
from torpor.model import BuildEvent, TemplateInfo
from torpor.sdk.client import Client
from torpor.sdk.loop import loop_thread
from torpor.sdk.templates import AsyncTemplates


class Templates:
    """All calls are on the class; there is nothing to make an instance of."""

    @staticmethod
    def list(*, client: Client | None = None) -> builtins.list[TemplateInfo]:
        """Return the built templates, by name."""
        return loop_thread.run(AsyncTemplates.list(client=client))

    @staticmethod
    def get(name: str, *, client: Client | None = None) -> TemplateInfo:
        """Return one built template. Raises `NotFound`."""
        return loop_thread.run(AsyncTemplates.get(name, client=client))

    @staticmethod
    def delete(name: str, *, client: Client | None = None) -> None:
        """Forget a template. Raises `NotFound`, or `Conflict` while a sandbox needs it."""
        loop_thread.run(AsyncTemplates.delete(name, client=client))

    @staticmethod
    def build(
        name_or_recipe: str | Path,
        *,
        rootfs: str | Path | None = None,
        image: str | Path | None = None,
        dockerfile: str | Path | None = None,
        context: str | Path | None = None,
        disk_gib: int | None = None,
        force: bool = False,
        progress: Callable[[BuildEvent], object] | None = None,
        client: Client | None = None,
    ) -> TemplateInfo:
        """Build a shipped template by name, or one from a recipe file, and return it."""
        for event in Templates.build_stream(
            name_or_recipe,
            rootfs=rootfs,
            image=image,
            dockerfile=dockerfile,
            context=context,
            disk_gib=disk_gib,
            force=force,
            client=client,
        ):
            if progress is not None:
                progress(event)
            if event.template is not None:
                return event.template
        raise TorporError("the build ended without a template", hint="see the daemon's log")

    @staticmethod
    def build_stream(
        name_or_recipe: str | Path,
        *,
        rootfs: str | Path | None = None,
        image: str | Path | None = None,
        dockerfile: str | Path | None = None,
        context: str | Path | None = None,
        disk_gib: int | None = None,
        force: bool = False,
        client: Client | None = None,
    ) -> Iterator[BuildEvent]:
        """Yield the steps of a build as they happen, the finished template with the last."""
        return loop_thread.iterate(
            AsyncTemplates.build_stream(
                name_or_recipe,
                rootfs=rootfs,
                image=image,
                dockerfile=dockerfile,
                context=context,
                disk_gib=disk_gib,
                force=force,
                client=client,
            )
        )
