"""What a Dockerfile builds on: a template of this home, an image or a root file system on disk, or a registry's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torpor.errors import InvalidRequest
from torpor.templates.dockerfile.meaning import Head
from torpor.templates.dockerfile.parse import Script
from torpor.templates.oci.registry import check_reference
from torpor.templates.oci.source import open_source


@dataclass(frozen=True, slots=True)
class TreeBase:
    """A root file system from elsewhere: exactly one is set."""

    rootfs: Path | None = None
    image: Path | str | None = None


def tree_base(script: Script, head: Head, context: Path) -> TreeBase | None:
    """Return the path that FROM names, relative to the context; None: it is no path. Blocks.

    Raises:
        InvalidRequest: there is nothing.
    """
    if not head.base.startswith(("/", "./", "../")):
        return None
    path = context / head.base
    if path.is_dir():
        return TreeBase(image=path)
    if not path.is_file():
        raise script.wrong(head.line, f"FROM {head.base}: {path} is not there")
    try:
        source = open_source(path)
    except InvalidRequest:  # compressed, which a root file system may be
        return TreeBase(rootfs=path)
    try:
        is_image = source.has("oci-layout") or source.has("manifest.json")
    finally:
        source.close()
    return TreeBase(image=path) if is_image else TreeBase(rootfs=path)


def registry_base(script: Script, head: Head) -> TreeBase:
    """Return the reference that FROM names. Raises `InvalidRequest`: it cannot be one."""
    try:
        return TreeBase(image=check_reference(head.base))
    except InvalidRequest as exc:
        raise script.wrong(head.line, f"FROM: {exc.message}", hint=exc.hint) from exc
