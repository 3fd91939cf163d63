"""The table of everything that the host can ask, and the methods on commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torpor_guest import archive, content, files, proctree
from torpor_guest.execs import Execs
from torpor_guest.follow import follow
from torpor_guest.follow_dir import FolderMethods
from torpor_guest.gate import DISK
from torpor_guest.inlets import InletMethods
from torpor_guest.inventories import InventoryMethods
from torpor_guest.memory import MemorySocket
from torpor_guest.paths import number
from torpor_guest.ports import PortMethods
from torpor_guest.session import Method
from torpor_guest.snapshots import SnapshotMethods
from torpor_guest.stream import Stream
from torpor_guest.system import System
from torpor_guest.users import user_name
from torpor_guest.volumes import VolumeMethods


def table(
    execs: Execs,
    system: System,
    snapshots: SnapshotMethods,
    inventories: InventoryMethods,
    volumes: VolumeMethods,
    memory: MemorySocket,
) -> Mapping[str, Method]:
    """Return the methods by name."""
    commands = CommandMethods(execs)
    ports = PortMethods()
    inlets = InletMethods()
    return {
        "exec.start": commands.start,
        "exec.run": commands.run,
        "exec.attach": commands.attach,
        "exec.stdin": commands.stdin,
        "exec.signal": commands.signal,
        "exec.resize": commands.resize,
        "exec.get": commands.get,
        "exec.list": commands.list,
        "exec.forget": _after_thaw(commands.forget),
        "exec.drop": _after_thaw(commands.drop),
        "processes": commands.processes,
        "stat": files.stat_path,
        "list_dir": files.list_dir,
        "walk": files.walk,
        "follow_dir": FolderMethods().follow,
        "mkdir": _after_thaw(files.mkdir),
        "remove": _after_thaw(files.remove),
        "rename": _after_thaw(files.rename),
        "read": content.read,
        "write": _after_thaw(content.write),
        "pack": archive.pack,
        "unpack": _after_thaw(archive.unpack),
        "set_clock": system.set_clock,
        "grow_disk": _after_thaw(system.grow_disk),
        "settle": _after_thaw(system.settle),
        "shutdown": _after_thaw(system.shutdown),
        "volume.mount": _after_thaw(volumes.mount),
        "volume.unmount": _after_thaw(volumes.unmount),
        "volume.grow": _after_thaw(volumes.grow),
        "volume.usage": volumes.usage,
        "sync": snapshots.sync,
        "freeze": snapshots.freeze,
        "thaw": snapshots.thaw,
        "renew": snapshots.renew,
        "still": snapshots.still,
        "quiesce": _after_thaw(snapshots.quiesce),
        "quiesce.confirm": snapshots.confirm,
        "quiesce.release": snapshots.release,
        "inventory.detect": inventories.detect,
        "inventory.take": _after_thaw(inventories.take),
        "memory.serve": memory.serve,
        "port.list": ports.list,
        "port.connect": ports.connect,
        "inlet.serve": inlets.serve,
        "inlet.take": inlets.take,
    }


def _after_thaw(method: Method) -> Method:
    """Return `method`, which writes, so that it begins when nothing is frozen."""

    async def begin(stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        await DISK.passed()
        return await method(stream, params)

    return begin


class CommandMethods:
    """Methods on commands and processes."""

    def __init__(self, execs: Execs) -> None:
        self._execs = execs

    async def start(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Start a command, once an id."""
        command = await self._execs.start(params)
        return {"exec": command.info()}

    async def run(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Start a command, once an id, and follow it."""
        command = await self._execs.start(params)
        return await follow(stream, command, params)

    async def attach(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Follow a command from byte offsets on."""
        return await follow(stream, await self._execs.get(params.get("exec_id")), params)

    async def stdin(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Write what comes until END to a command's stdin; with `eof` close it then."""
        command = await self._execs.get(params.get("exec_id"))
        async with command.stdin_lock:
            command.check_stdin()
            while (item := await stream.receive()) is not None:
                await command.feed_stdin(item[1])
            if params.get("eof"):
                await command.end_stdin()
        return {}

    async def signal(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Send a signal to a command; 9 kills its whole tree."""
        value = number(params, "signal", None)
        (await self._execs.get(params.get("exec_id"))).send_signal(value or 0)
        return {}

    async def resize(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Change the size of a command's terminal."""
        await self._execs.resize(params.get("exec_id"), params)
        return {}

    async def get(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Say what is so about a command."""
        return {"exec": (await self._execs.get(params.get("exec_id"))).info()}

    async def list(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Send all commands, oldest first."""
        await files.send_items(stream, [command.info() for command in self._execs.list()])
        return {}

    async def forget(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Keep nothing of the commands that have ended; answer how many those were."""
        return {"count": self._execs.forget_ended()}

    async def drop(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Keep nothing of one command, if it has ended; answer whether it was there, as a count."""
        return {"count": self._execs.forget_one(params.get("exec_id"))}

    async def processes(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Send the guest's processes, kernel threads left out."""
        found = proctree.scan()
        owners = self._owners(found)
        items = []
        for process in found.values():
            if process.is_kernel:
                continue
            items.append(
                {
                    "pid": process.pid,
                    "ppid": process.ppid,
                    "user": user_name(process.uid),
                    "state": process.state,
                    "rss_bytes": process.rss_bytes,
                    "command": proctree.command_of(process),
                    "exec_id": owners.get(process.pid),
                }
            )
        await files.send_items(stream, items)
        return {}

    def _owners(self, found: dict[int, proctree.Process]) -> dict[int, str]:
        """Return the exec id of each process that belongs to a command."""
        commands = self._execs.list()
        groups = {c.cgroup.rpartition("/exec/")[2]: c.request.exec_id for c in commands if c.cgroup}
        sessions = {c.pid: c.request.exec_id for c in commands if c.is_running}
        owners: dict[int, str] = {}
        for process in found.values():
            if process.is_kernel:
                continue
            group = proctree.cgroup_of(process.pid).rpartition("/exec/")[2].partition("/")[0]
            owner = groups.get(group) if group else None
            owner = owner or sessions.get(process.session) or proctree.marker_of(process.pid)
            if owner:
                owners[process.pid] = owner
        return owners
