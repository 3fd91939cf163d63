"""What an asynchronous sandbox can do about volumes: attach, detach, list."""

from __future__ import annotations

from torpor.model_volumes import VolumeHolder
from torpor.sdk.dual import dual
from torpor.sdk.handle import AsyncHandle
from torpor.sdk.volume_results import LIFE_LIMIT_S, holder, volume_info
from torpor.sdk.volumes import AsyncVolume


class AsyncSandboxVolumes(AsyncHandle):
    """The part of `AsyncSandbox` about volumes. All of it also works on the class with an id."""

    @dual
    async def attach_volume(
        self, volume: str, path: str, *, read_only: bool = False, repair: bool = False
    ) -> VolumeHolder:
        """Attach a volume to the running sandbox and mount it; one that sleeps is woken.

        Many sandboxes may have a volume read-only, or exactly one read-write.

        Args:
            volume: its name or id.
            path: absolute path in the guest; made if it is missing.
            read_only: the machine cannot write to it, whatever its guest does.
            repair: check and mend its file system (e2fsck) before it is mounted.

        Raises:
            NotFound: there is no such volume.
            VolumeHeld: another sandbox has it in a way that forbids this; the message names it.
            Conflict: it is attached already, the path is taken, or its journal is to be replayed first.
            WrongState: the sandbox is not running.
            GuestFailed: it cannot be mounted; nothing was changed, and the hint says what to do.
        """
        body = {"volume": volume, "path": path, "read_only": read_only, "repair": repair}
        return holder(
            await self._connection.call(
                "POST", f"{self._path}/volumes", body=body, limit_s=LIFE_LIMIT_S
            )
        )

    @dual
    async def detach_volume(self, path: str) -> None:
        """Unmount the volume at a path (or of that name) and take it off; a sandbox that has ended lets go of it.

        Raises:
            NotFound: no volume is there.
            Busy: processes use it; the message and the fact `holders` name them. It stays as it was.
        """
        await self._connection.call(
            "DELETE", f"{self._path}/volumes", query={"path": path}, limit_s=LIFE_LIMIT_S
        )

    @dual
    async def volumes(self) -> list[AsyncVolume]:
        """Return the volumes that the sandbox has."""
        body = await self._connection.call("GET", f"{self._path}/volumes")
        found = [volume_info(item) for item in body["volumes"]]
        return [AsyncVolume(info.name, info, self._client) for info in found]
