"""Templates: bootable images that sandboxes are made from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from torpor.base.aio import closing
from torpor.errors import TorporError, error_from_wire
from torpor.model import BuildEvent, TemplateInfo
from torpor.sdk.client import Client, connection, quote_part, raw_bytes
from torpor.sdk.parse import build_event, template_info
from torpor.sdk.sse import sse_events


class AsyncTemplates:
    """All calls are on the class; there is nothing to make an instance of."""

    @staticmethod
    async def list(*, client: Client | None = None) -> list[TemplateInfo]:
        """Return the built templates, by name."""
        made = connection(client)
        return [template_info(item) for item in (await made.call("GET", "/v1/templates"))["items"]]

    @staticmethod
    async def get(name: str, *, client: Client | None = None) -> TemplateInfo:
        """Return one built template. Raises `NotFound`."""
        made = connection(client)
        return template_info(await made.call("GET", f"/v1/templates/{quote_part(name)}"))

    @staticmethod
    async def delete(name: str, *, client: Client | None = None) -> None:
        """Forget a template. Raises `NotFound`, or `Conflict` while a sandbox needs it."""
        made = connection(client)
        await made.call("DELETE", f"/v1/templates/{quote_part(name)}")

    @staticmethod
    async def build(
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
        """Build a shipped template by name, or one from a recipe file, and return it.

        One that is built already is returned at once unless `force`. A build goes on when the caller goes
        away; asking again follows it.

        Args:
            name_or_recipe: `base`, `agent`, or the path of a TOML file (a `Path`, or text with `/` or `.toml`);
                with `rootfs`, `image` or `dockerfile` the new template's name.
            rootfs: a tar with a root file system that it is made of, on the daemon's host.
            image: a container image that it is made of: the path of an OCI layout (a folder or a tar) or of what
                `docker save` writes, on the daemon's host; or (text that is no path here) a reference to one in a
                registry, for which the host needs skopeo.
            dockerfile: the path of a Dockerfile (a documented subset) on the daemon's host that makes it.
            context: the folder that its COPY takes from; None: the Dockerfile's own.
            disk_gib: size of its disk, only with `rootfs`, `image` or `dockerfile`; None: 8, or as large as the
                disk of the template that the Dockerfile builds on.
            force: build again.
            progress: called with each step.
            client: which daemon; None: as the environment says.

        Raises:
            NotFound: there is no such recipe.
            InvalidRequest: the recipe or image is malformed, or the root file system lacks what a machine needs.
            BuildFailed: a step failed; facts have the step and the end of its log.
            HostNotReady: a tool is missing on the host.
        """
        steps = AsyncTemplates.build_stream(
            name_or_recipe,
            rootfs=rootfs,
            image=image,
            dockerfile=dockerfile,
            context=context,
            disk_gib=disk_gib,
            force=force,
            client=client,
        )
        async with closing(steps) as events:
            async for event in events:
                if progress is not None:
                    progress(event)
                if event.template is not None:
                    return event.template
        raise TorporError("the build ended without a template", hint="see the daemon's log")

    @staticmethod
    async def build_stream(
        name_or_recipe: str | Path,
        *,
        rootfs: str | Path | None = None,
        image: str | Path | None = None,
        dockerfile: str | Path | None = None,
        context: str | Path | None = None,
        disk_gib: int | None = None,
        force: bool = False,
        client: Client | None = None,
    ) -> AsyncGenerator[BuildEvent, None]:
        """Yield the steps of a build as they happen, the finished template with the last. Raises as `build`."""
        made = connection(client)
        body: dict[str, object] = {"force": force}
        if rootfs is None and image is None and dockerfile is None:
            name, value = _source(name_or_recipe)
            body[name] = value
        else:
            body["name"] = str(name_or_recipe)
        if rootfs is not None:
            body["rootfs_path"] = _absolute(rootfs)
        if image is not None:
            body["image"] = await asyncio.to_thread(_image, image)
        if dockerfile is not None:
            body["dockerfile_path"] = _absolute(dockerfile)
        if context is not None:
            body["context_path"] = _absolute(context)
        if disk_gib is not None:
            body["disk_gib"] = disk_gib
        async with (
            made.stream("POST", "/v1/templates/build", body=body) as reply,
            closing(sse_events(raw_bytes(reply))) as events,
        ):
            async for event in events:
                if event.name == "error":
                    raise error_from_wire(event.data)
                if event.name in ("progress", "done"):
                    yield build_event(event.data)


def _source(name_or_recipe: str | Path) -> tuple[str, str]:
    if (
        isinstance(name_or_recipe, Path)
        or "/" in name_or_recipe
        or name_or_recipe.endswith(".toml")
    ):
        return "recipe_path", _absolute(name_or_recipe)
    return "name", name_or_recipe


def _image(image: str | Path) -> str:
    """Return an absolute path, or a reference as it is: text that looks like no path and is none here."""
    text = str(image)
    is_path = isinstance(image, Path) or text.startswith(("/", "./", "../")) or Path(text).exists()
    return _absolute(text) if is_path else text


def _absolute(path: str | Path) -> str:
    return str(Path(path).absolute())
