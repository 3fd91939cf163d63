"""What a container image's own settings make of a recipe."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence

from torpor.templates.oci.image import Settings
from torpor.templates.recipe import Recipe, RecipeFile

COMMAND_FILE = "/opt/torpor/bin/image-command"
"""A program of the guest that runs what a container of the image would run."""


def with_settings(recipe: Recipe, found: Settings) -> Recipe:
    """Return the recipe of a container image with what the image says, where the recipe does not."""
    base = Recipe(name=recipe.name)
    files = recipe.files
    if found.command:
        text = command_text(found.command)
        files = (*files, RecipeFile(target=COMMAND_FILE, content=text, mode=0o755))
    return dataclasses.replace(
        recipe,
        image_identity=found.identity(),
        files=files,
        env={**found.env, **recipe.env},
        default_user=recipe.default_user or found.user or base.default_user,
        default_cwd=recipe.default_cwd or found.cwd or base.default_cwd,
        command=found.command,
    )


def command_text(command: Sequence[str]) -> str:
    """Return the program that runs what a container of the image would run."""
    return f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'
