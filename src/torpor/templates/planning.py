"""From a recipe to a plan: what an image or a Dockerfile says is read here, before anything is built."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.base.ids import check_name
from torpor.errors import HostNotReady, InvalidRequest, NotFound
from torpor.templates.dockerfile.base import TreeBase, registry_base, tree_base
from torpor.templates.dockerfile.context import Context
from torpor.templates.dockerfile.made import Dockerfile
from torpor.templates.dockerfile.meaning import Base, Head, head_of, meaning_of
from torpor.templates.dockerfile.parse import Script, read_script
from torpor.templates.image_recipe import with_settings
from torpor.templates.manifest import Template
from torpor.templates.oci import image, registry
from torpor.templates.plan import BuildPlan, make_plan
from torpor.templates.recipe import Recipe


async def plan_of(made: Recipe) -> BuildPlan:
    """Return the plan for a recipe without a Dockerfile.

    Raises:
        InvalidRequest, NotFound, HostNotReady: its image cannot be read, or had from its registry.
    """
    return await asyncio.to_thread(make_plan, await _with_image(made))


async def _with_image(made: Recipe) -> Recipe:
    if made.image is None:
        return made
    if isinstance(made.image, Path):
        found = (await asyncio.to_thread(image.look, made.image)).settings
    else:
        found = await registry.settings(made.image)
    return with_settings(made, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A Dockerfile whose base is not looked up yet."""

    recipe: Recipe
    script: Script
    head: Head
    context: Context
    tree: TreeBase | None
    """Set when FROM names a path."""
    parent_name: str | None
    """Set when FROM may name a template."""


def draft_of(made: Recipe) -> Draft:
    """Return the draft for a recipe with a Dockerfile. Blocks.

    Raises:
        InvalidRequest: the Dockerfile is malformed, or its base cannot be.
    """
    assert made.dockerfile is not None
    assert made.context is not None
    script = read_script(made.dockerfile)
    head = head_of(script)
    context = Context(made.context)
    tree = tree_base(script, head, made.context)
    name = None
    if tree is None:
        try:
            name = check_name(head.base, "template")
        except InvalidRequest:
            name = None  # a reference to a registry, then
    if name == made.name:
        raise script.wrong(
            head.line, f"FROM names the template itself, {name}", hint="give it another name"
        )
    return Draft(
        recipe=made, script=script, head=head, context=context, tree=tree, parent_name=name
    )


async def plan_of_dockerfile(draft: Draft, parent: Template | None) -> BuildPlan:
    """Return the plan for a Dockerfile on `parent`, or on the image or root file system that it names.

    Raises:
        InvalidRequest: an instruction cannot be, or a file of the context is not there.
        NotFound, HostNotReady: the base's image cannot be had from its registry.
    """
    if parent is not None:
        return await asyncio.to_thread(_on_template, draft, parent)
    tree = draft.tree or registry_base(draft.script, draft.head)
    asked = draft.recipe
    default = Recipe(name=asked.name)
    plain = replace(
        default,
        description=asked.description,
        rootfs=tree.rootfs,
        image=tree.image,
        default_user="" if tree.image else default.default_user,
        default_cwd="" if tree.image else default.default_cwd,
        disk_gib=asked.disk_gib or default.disk_gib,
        ram_mib=asked.ram_mib or default.ram_mib,
        vcpus=asked.vcpus or default.vcpus,
    )
    try:
        made = await _with_image(plain)
    except (NotFound, HostNotReady) as exc:
        if draft.tree is not None:
            raise
        where = f"{draft.script.path}, line {draft.head.line}"
        raise type(exc)(
            f"{where}: FROM {draft.head.base} is no template here; {exc.message}",
            hint=exc.hint,
            **exc.facts,
        ) from exc
    return await asyncio.to_thread(_on_tree, draft, made)


def _on_template(draft: Draft, parent: Template) -> BuildPlan:
    info, asked = parent.info, draft.recipe
    if asked.disk_gib and asked.disk_gib < info.disk_gib:
        raise InvalidRequest(
            f"disk_gib is {asked.disk_gib}; the disk of {info.name}, which it is built on, has {info.disk_gib}"
        )
    made = Recipe(
        name=asked.name,
        description=asked.description,
        default_user=info.default_user,
        default_cwd=info.default_cwd,
        env=info.env,
        command=info.command,
        disk_gib=asked.disk_gib or info.disk_gib,
        ram_mib=asked.ram_mib or info.ram_mib,
        vcpus=asked.vcpus or info.vcpus,
    )
    return _planned(draft, made, parent)


def _on_tree(draft: Draft, made: Recipe) -> BuildPlan:
    return _planned(draft, made, None)


def _planned(draft: Draft, made: Recipe, parent: Template | None) -> BuildPlan:
    base = Base(env=made.env, user=made.default_user, cwd=made.default_cwd, command=made.command)
    dockerfile = Dockerfile(
        path=draft.script.path,
        meaning=meaning_of(draft.script, draft.head, base),
        context=draft.context,
        grows=parent is not None and made.disk_gib > parent.info.disk_gib,
    )
    plan = make_plan(made)
    below = plan.recipe_digest if parent is None else f"{plan.recipe_digest} {parent.info.digest}"
    return replace(
        plan, recipe_digest=dockerfile.digest(below), parent=parent, dockerfile=dockerfile
    )
