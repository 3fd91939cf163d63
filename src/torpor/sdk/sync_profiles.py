"""The synchronous face of agent profiles; `torpor.sdk.inventories` says what each call does."""

from __future__ import annotations

import builtins

from torpor.sdk.client import Client
from torpor.sdk.inventories import AsyncProfiles, ProfileInfo
from torpor.sdk.loop import loop_thread


class Profiles:
    """The agent profiles that come with the package. All calls are on the class."""

    @staticmethod
    def list(*, client: Client | None = None) -> builtins.list[ProfileInfo]:
        """Return the profiles, by name."""
        return loop_thread.run(AsyncProfiles.list(client=client))

    @staticmethod
    def get(name: str, *, client: Client | None = None) -> ProfileInfo:
        """Return one profile. Raises `NotFound`."""
        return loop_thread.run(AsyncProfiles.get(name, client=client))
