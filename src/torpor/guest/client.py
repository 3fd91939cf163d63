"""`connect`: the real `Guest`, over the socket that is the host end of the guest channel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from typing_extensions import override

from torpor.guest.channel import Channel
from torpor.guest.execs import ExecCalls
from torpor.guest.file_events import FileEventCalls
from torpor.guest.files import FileCalls
from torpor.guest.inlets import InletCalls
from torpor.guest.inventories import InventoryCalls
from torpor.guest.memory import MemoryCalls
from torpor.guest.ports import PortCalls
from torpor.guest.quiesce import QuiesceCalls
from torpor.guest.snapshots import SnapshotCalls
from torpor.guest.system import SystemCalls
from torpor.guest.volumes import VolumeCalls
from torpor.model import GuestInfo

SILENCE_LIMIT_S: Final = 30.0


class GuestClient(
    ExecCalls,
    FileCalls,
    FileEventCalls,
    InletCalls,
    InventoryCalls,
    MemoryCalls,
    PortCalls,
    QuiesceCalls,
    SnapshotCalls,
    SystemCalls,
    VolumeCalls,
):
    """A connected guest agent; `connect` makes it. See `torpor.guest.port.Guest`."""

    def __init__(self, channel: Channel, info: GuestInfo) -> None:
        super().__init__(channel)
        self._info = info

    @property
    def info(self) -> GuestInfo:
        """See `Guest.info`."""
        return self._info

    @property
    def closed(self) -> bool:
        """See `Guest.closed`."""
        return self._channel.is_cut

    @override
    def _capabilities(self) -> frozenset[str]:
        return self._info.capabilities

    async def ping(self, *, timeout_s: float = 5.0) -> None:
        """See `Guest.ping`."""
        await self._channel.ping(timeout_s=timeout_s)

    async def aclose(self) -> None:
        """See `Guest.aclose`."""
        self._channel.close()


async def connect(
    socket_path: Path,
    *,
    epoch: int,
    timeout_s: float,
    port: int | None = None,
    silence_limit_s: float = SILENCE_LIMIT_S,
) -> GuestClient:
    """Connect to the agent behind a Unix socket; it may still be starting.

    Args:
        socket_path: the host end of the guest channel.
        epoch: 0 to 2³²-1, higher than at any connect to this guest (or the one it was restored from) before.
        timeout_s: seconds that the agent has to answer.
        port: None, or where the agent listens behind a socket that leads to the guest's vsock.
        silence_limit_s: seconds without any answer, while something is asked, after which the guest counts as
            unreachable. A paused machine is silent: close the channel before a pause.

    Raises:
        GuestUnreachable: nothing listens there, or no agent answered in time.
        GuestFailed: the agent speaks no protocol version that we speak; both are named.
    """
    channel, info = await Channel.open(
        socket_path, port, epoch=epoch, timeout_s=timeout_s, silence_limit_s=silence_limit_s
    )
    return GuestClient(channel, info)
