"""`AsyncVolume`: storage that outlives sandboxes, as an object."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Self

from typing_extensions import override

from torpor.errors import TorporError
from torpor.model_volumes import VolumeId, VolumeInfo, VolumeSnapshotInfo
from torpor.sdk.client import Client, Connection, connection, quote_part, resolved
from torpor.sdk.results import Transfer
from torpor.sdk.volume_results import LIFE_LIMIT_S, volume_info, volume_snapshot_info


class AsyncVolume:
    """One volume. Made by `create`, `get` or `list`; `handle` makes one of a name without asking."""

    def __init__(self, name: str, info: VolumeInfo | None, client: Client | None) -> None:
        self._name = name
        self._info = info
        self._client = resolved(client)

    @classmethod
    async def create(cls, name: str, size_gib: float = 1, *, client: Client | None = None) -> Self:
        """Make a volume with an empty ext4 file system. It takes disk of the host as it is written to.

        Args:
            name: 1 to 63 of a-z, 0-9, '.', '_' and '-'; unique.
            size_gib: what it may grow to hold, in GiB; 0.0625 or more.
            client: which daemon; None: as the environment says.

        Raises:
            Conflict: the name is taken.
            InvalidRequest: the name cannot be one, or the size is too small.
            LimitExceeded: a quota of the daemon is full.
            InsufficientResources: the host has no disk for it; nothing was made.
        """
        body = {"name": name, "size_gib": size_gib}
        info = volume_info(await connection(client).call("POST", "/v1/volumes", body=body))
        return cls(info.name, info, client)

    @classmethod
    async def get(cls, name: str, *, client: Client | None = None) -> Self:
        """Return the volume with that name or id. Raises `NotFound`."""
        found = cls.handle(name, client=client)
        found._name = (await found.refresh()).name
        return found

    @classmethod
    async def list(cls, *, client: Client | None = None) -> builtins.list[Self]:
        """Return all volumes, by name."""
        body = await connection(client).call("GET", "/v1/volumes")
        found = [volume_info(item) for item in body["volumes"]]
        return [cls(info.name, info, client) for info in found]

    @classmethod
    def handle(cls, name: str, *, client: Client | None = None) -> Self:
        """Return an object for a name or id without asking the daemon whether it exists."""
        return cls(name, None, client)

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def id(self) -> VolumeId:
        """Its id, `vol_…`."""
        return self.info.id

    @property
    def info(self) -> VolumeInfo:
        """What was so when the daemon was last asked; `refresh` asks again."""
        if self._info is None:
            raise TorporError(f"nothing is known of volume {self._name} yet", hint="call refresh()")
        return self._info

    @property
    def client(self) -> Client:
        """The daemon that has it."""
        return self._client

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    @property
    def _path(self) -> str:
        return f"/v1/volumes/{quote_part(self._name)}"

    async def refresh(self) -> VolumeInfo:
        """Ask what is so about the volume; a running sandbox that has it is asked how full it is."""
        self._info = volume_info(await self._connection.call("GET", self._path))
        return self._info

    async def delete(self, *, snapshots: bool = False) -> int:
        """Delete the volume and all that is in it; return the bytes freed. What clones need of it stays.

        Args:
            snapshots: delete its own snapshots with it.

        Raises:
            VolumeHeld: a sandbox has it; it is named.
            Conflict: snapshots of machines need it, or it has snapshots of its own.
        """
        body = await self._connection.call(
            "DELETE", self._path, query={"snapshots": snapshots}, limit_s=LIFE_LIMIT_S
        )
        freed: int = body["freed_bytes"]
        return freed

    async def grow(self, size_gib: float) -> VolumeInfo:
        """Make the volume and its file system larger, also while a running sandbox writes to it. Can be repeated.

        One that nobody has grows its file system when it is next attached read-write.

        Raises:
            InvalidRequest: it would become smaller.
            VolumeHeld: sandboxes have it that read only.
            WrongState: the sandbox that has it sleeps or is paused.
            LimitExceeded, InsufficientResources: no quota or no disk; nothing was changed.
        """
        return await self._changed("grow", {"size_gib": size_gib})

    async def keep(self) -> VolumeInfo:
        """Let a volume that was made for a restored or forked sandbox stay when that is deleted. Idempotent."""
        return await self._changed("keep", None)

    async def _changed(self, action: str, body: dict[str, float] | None) -> VolumeInfo:
        self._info = volume_info(
            await self._connection.call(
                "POST", f"{self._path}/{action}", body=body, limit_s=LIFE_LIMIT_S
            )
        )
        return self._info

    async def snapshot(self, *, label: str | None = None) -> VolumeSnapshotInfo:
        """Take a snapshot of the volume alone, attached or not. It costs what is written from here on.

        Raises:
            Conflict: the volume has a snapshot with that label.
        """
        return volume_snapshot_info(
            await self._connection.call(
                "POST", f"{self._path}/snapshots", body={"label": label}, limit_s=LIFE_LIMIT_S
            )
        )

    async def snapshots(self) -> builtins.list[VolumeSnapshotInfo]:
        """Return the volume's own snapshots, the newest first."""
        body = await self._connection.call("GET", f"{self._path}/snapshots")
        return [volume_snapshot_info(item) for item in body["snapshots"]]

    async def delete_snapshot(self, snapshot: str) -> int:
        """Delete a snapshot of the volume, by id or label; return the bytes freed. Raises `NotFound`."""
        path = f"{self._path}/snapshots/{quote_part(snapshot)}"
        body = await self._connection.call("DELETE", path, limit_s=LIFE_LIMIT_S)
        freed: int = body["freed_bytes"]
        return freed

    async def clone(self, name: str, *, snapshot: str | None = None) -> Self:
        """Make a volume that begins as this one is now, copy-on-write, and goes its own way from there.

        Args:
            name: of the new volume.
            snapshot: id or label of a snapshot of this volume to begin at; None: as it is now.
        """
        body = {"name": name, "snapshot": snapshot}
        info = volume_info(
            await self._connection.call(
                "POST", f"{self._path}/clone", body=body, limit_s=LIFE_LIMIT_S
            )
        )
        return type(self)(info.name, info, self._client)

    async def copy_in(
        self, local: str | Path, remote: str = "/", *, user: str | None = None
    ) -> Transfer:
        """Copy a file or folder into the volume, as `cp -r` does: into `remote` if that is a folder.

        Through the sandbox that has the volume read-write, else through one that is made for it, without a
        network, and deleted.

        Args:
            local: what to copy.
            remote: absolute path in the volume.
            user: who owns it there, by the sandbox's names; None: root.

        Raises:
            VolumeHeld: sandboxes have it that read only.
            NotFound: there is no template to make a sandbox from.
        """
        from torpor.sdk.volume_files import copy_in

        return await copy_in(self, Path(local), remote, user=user)

    async def copy_out(self, remote: str, local: str | Path) -> Transfer:
        """Copy a file or folder out of the volume, as `cp -r` does: into `local` if that is a folder.

        Through a sandbox that has the volume, else through one that is made for it and deleted.

        Raises:
            NotFound: there is nothing at `remote`.
        """
        from torpor.sdk.volume_files import copy_out

        return await copy_out(self, remote, Path(local))
