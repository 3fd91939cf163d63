"""Inventories and agent profiles, as the asynchronous objects ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.errors import InvalidRequest, NotFound
from torpor.model_inventory import Inventory, inventory_from_json
from torpor.sdk.client import Client, Connection, connection, quote_part

INVENTORY_LIMIT_S = 400.0
_PROFILE_MOST = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileInfo:
    """An agent profile that comes with the package."""

    name: str
    title: str
    description: str
    text: str
    """Its YAML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedProfile:
    """Which agent profile a machine has."""

    name: str
    title: str
    is_own: bool
    """It is the machine's own `/etc/torpor/profile.yaml`."""
    fits: tuple[str, ...]
    """All shipped profiles that fit."""
    problem: str | None
    """Why the machine's own profile is not used."""


class AsyncProfiles:
    """The agent profiles that come with the package. All calls are on the class."""

    @staticmethod
    async def list(*, client: Client | None = None) -> list[ProfileInfo]:
        """Return the profiles, by name."""
        body = await connection(client).call("GET", "/v1/profiles")
        return [_profile_info(item) for item in body["profiles"]]

    @staticmethod
    async def get(name: str, *, client: Client | None = None) -> ProfileInfo:
        """Return one profile. Raises `NotFound`."""
        path = f"/v1/profiles/{quote_part(name)}"
        return _profile_info(await connection(client).call("GET", path))


def _profile_info(body: Mapping[str, Any]) -> ProfileInfo:
    return ProfileInfo(
        name=body["name"],
        title=body["title"],
        description=body["description"],
        text=body["text"],
    )


def detected_profile(body: Mapping[str, Any]) -> DetectedProfile:
    """Return the detected profile in `body`."""
    return DetectedProfile(
        name=body["name"],
        title=body["title"],
        is_own=body["is_own"],
        fits=tuple(body["fits"]),
        problem=body["problem"],
    )


async def live_inventory(
    link: Connection, path: str, profile: str | Path | None, *, commands: bool
) -> Inventory:
    """Return what the sandbox at `path` holds now."""
    words = None if profile is None else await asyncio.to_thread(words_of, profile)
    body = await link.call(
        "POST",
        f"{path}/inventory",
        body={"profile": words, "commands": commands},
        limit_s=INVENTORY_LIMIT_S,
    )
    return inventory_from_json(body, source="the daemon's answer")


def words_of(profile: str | Path) -> str:
    """Return what the daemon is told: a name as it is, a file's content, or YAML as it is. Blocks.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it cannot be read, or is too long.
    """
    text = str(profile)
    if not isinstance(profile, Path) and ("\n" in text or ":" in text):
        return text
    if not isinstance(profile, Path) and "/" not in text and not text.endswith((".yaml", ".yml")):
        return text
    path = Path(text)
    try:
        with path.open("rb") as file:
            data = file.read(_PROFILE_MOST + 1)
    except FileNotFoundError as exc:
        raise NotFound(f"there is no profile file {path}", path=str(path)) from exc
    except OSError as exc:
        raise InvalidRequest(f"profile file {path} cannot be read: {exc}") from exc
    if len(data) > _PROFILE_MOST:
        raise InvalidRequest(f"profile file {path} is longer than {_PROFILE_MOST >> 10} KiB")
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"profile file {path} is not UTF-8: {exc}") from exc
