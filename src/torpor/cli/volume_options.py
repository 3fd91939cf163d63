"""Options about volumes that other commands take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from torpor.errors import InvalidRequest

if TYPE_CHECKING:
    from torpor.model_volumes import VolumesMode
    from torpor.sdk.volume_results import VolumeWish

MODES = ("include", "detach", "keep-current")

ReturnVolumes = Annotated[
    str | None,
    typer.Option(
        "--volumes",
        help="Of the snapshot: `include`, `detach` or `keep-current`; default: as it was taken.",
    ),
]


def volumes_mode(text: str | None) -> VolumesMode | None:
    """Return what is to become of volumes. Raises `InvalidRequest` for a word that is none of them."""
    if text is not None and text not in MODES:
        raise InvalidRequest(
            f"--volumes {text!r} is not known", hint=f"--volumes {'|'.join(MODES)}"
        )
    return cast("VolumesMode | None", text)


def volume_options(texts: Sequence[str]) -> dict[str, str | VolumeWish]:
    """Return `NAME:PATH[:ro]` texts as volumes by path.

    Raises:
        InvalidRequest: one is not of that form, or a path is there twice.
    """
    found: dict[str, str | VolumeWish] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        path, _, word = rest.partition(":")
        if not name or not path.startswith("/") or word not in ("", "ro", "rw") or path in found:
            raise InvalidRequest(
                f"--volume {text!r} is not NAME:PATH[:ro], or its path is there twice",
                hint="such as --volume data:/data",
            )
        found[path] = {"volume": name, "read_only": True} if word == "ro" else name
    return found
