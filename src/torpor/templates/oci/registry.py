"""Images in a registry, by way of skopeo, which knows registries and their logins."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from torpor.base import proc
from torpor.errors import HostNotReady, InvalidRequest, NotFound, OperationTimeout
from torpor.templates.oci.image import Settings, settings_of

_INSPECT_S, _COPY_S = 120.0, 1800.0
_REFERENCE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?(/[A-Za-z0-9._-]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"
)


def check_reference(text: str) -> str:
    """Return the reference without `docker://`. Raises `InvalidRequest`: it cannot be one."""
    reference = text.removeprefix("docker://")
    if len(reference) > 512 or _REFERENCE.fullmatch(reference) is None:
        raise InvalidRequest(
            f"{text[:200]!r} is neither an image on this host nor a reference to one in a registry",
            hint="give the path of a layout folder or a docker save archive, or NAME[:TAG]",
        )
    return reference


async def settings(reference: str) -> Settings:
    """Ask the registry for an image's settings.

    Raises:
        HostNotReady: skopeo is not installed.
        NotFound: the registry does not answer, or has no such image for linux/amd64.
    """
    done = await _skopeo(reference, "inspect", "--config", "--raw", f"docker://{reference}")
    try:
        config = json.loads(done.stdout)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise InvalidRequest(f"the registry's config of {reference} is no table")
    return settings_of(config, _InRegistry(Path(reference)))


async def pull(reference: str, folder: Path) -> Path:
    """Copy an image into `folder`, which is there, and return its layout. Raises as `settings`."""
    layout = folder / "pulled"
    await _skopeo(reference, "copy", "--quiet", f"docker://{reference}", f"oci:{layout}:image")
    return layout


@dataclass(frozen=True, slots=True)
class _InRegistry:
    """Stands for a reference in messages."""

    path: Path


async def _skopeo(reference: str, verb: str, *words: str) -> proc.Finished:
    tool = shutil.which("skopeo")
    if tool is None:
        raise HostNotReady(
            f"there is no image {reference!r} on this host, and skopeo, which asks registries, is not installed",
            hint="run: sudo apt-get install skopeo; or give the path of what docker save wrote",
        )
    argv = [tool, "--override-os", "linux", "--override-arch", "amd64", verb, *words]
    try:
        return await proc.run(argv, timeout_s=_INSPECT_S if verb == "inspect" else _COPY_S)
    except (proc.HostCommandFailed, OperationTimeout) as exc:
        raise NotFound(
            f"the image {reference!r} cannot be had from its registry: {exc.message}",
            hint="is the name right, and the registry reachable? skopeo login gives it a password",
        ) from exc
