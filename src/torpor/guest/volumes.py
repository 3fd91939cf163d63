"""What the host asks of a guest about volumes."""

from __future__ import annotations

from typing import Any, Final

from torpor.errors import GuestFailed
from torpor.guest.answers import count
from torpor.guest.calls import Calls
from torpor.model_volumes import VolumeUsage

_MOUNT_LIMIT_S: Final = 300.0
"""A journal to replay takes seconds; the disk itself comes at once."""
_PROGRAM_LIMIT_S: Final = 3900.0
"""For a check or a resize of a large file system."""


class VolumeCalls(Calls):
    """Disks that come and go."""

    async def mount_volume(
        self, path: str, *, slot: int, serial: str, read_only: bool, repair: bool = False
    ) -> VolumeUsage:
        """See `Guest.mount_volume`."""
        params: dict[str, object] = {
            "path": path,
            "slot": slot,
            "serial": serial,
            "read_only": read_only,
            "repair": repair,
        }
        limit_s = _PROGRAM_LIMIT_S if repair else _MOUNT_LIMIT_S
        return _usage(await self._channel.call("volume.mount", params, limit_s=limit_s))

    async def unmount_volume(self, path: str, *, slot: int) -> VolumeUsage | None:
        """See `Guest.unmount_volume`."""
        params: dict[str, object] = {"path": path, "slot": slot}
        answer = await self._channel.call("volume.unmount", params, limit_s=_MOUNT_LIMIT_S)
        if answer.get("was_mounted") is not True:
            return None
        try:
            return _usage(answer)
        except GuestFailed:  # a broken file system has odd sizes; it is unmounted all the same
            return VolumeUsage(0, 0)

    async def grow_volume(
        self, path: str, *, slot: int, serial: str, size_bytes: int
    ) -> VolumeUsage:
        """See `Guest.grow_volume`."""
        params: dict[str, object] = {
            "path": path,
            "slot": slot,
            "serial": serial,
            "size_bytes": size_bytes,
        }
        return _usage(await self._channel.call("volume.grow", params, limit_s=_PROGRAM_LIMIT_S))

    async def volume_usage(self, path: str) -> VolumeUsage:
        """See `Guest.volume_usage`."""
        return _usage(await self._channel.call("volume.usage", {"path": path}))


def _usage(answer: dict[str, Any]) -> VolumeUsage:
    found = VolumeUsage(count(answer, "total_bytes"), count(answer, "used_bytes"))
    if found.used_bytes > found.total_bytes:
        raise GuestFailed(
            f"the guest agent says that {found.used_bytes} of {found.total_bytes} bytes are used"
        )
    return found
