"""Methods on the machine itself: its clock, its disk, its start and its end."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from torpor_guest import errors
from torpor_guest.errors import AgentError
from torpor_guest.kernel import Kernel
from torpor_guest.programs import Programs
from torpor_guest.stream import Stream
from torpor_guest.threads import in_thread

_EARLIEST_S, _LATEST_S = 946684800, 7258118400  # the years 2000 to 2200

_log = logging.getLogger("torpor")


class System:
    """The machine, by way of its own programs."""

    def __init__(self, programs: Programs, kernel: Kernel, proc_sys: Path) -> None:
        self._programs = programs
        self._kernel = kernel
        self._proc_sys = proc_sys

    async def set_clock(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Set the time of day."""
        now_ns = time_in(params)
        try:
            self._kernel.set_clock(now_ns)
        except OSError as exc:
            raise errors.from_os(exc, "set the clock") from exc
        return {}

    async def grow_disk(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Grow the root file system to its device's size; answer its size in bytes."""
        kind, device = root_device(Path("/proc/self/mountinfo").read_text())
        if kind in ("ext2", "ext3", "ext4"):
            status, output = await self._programs.run(["resize2fs", device], timeout_s=600)
            if status != 0:
                raise AgentError(errors.FAILED, f"resize2fs {device}: {output[-500:].strip()}")
        found = os.statvfs("/")
        return {"size_bytes": found.f_blocks * found.f_frsize, "file_system": kind}

    async def settle(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Wait for the end of the start-up, then make the disk and the memory small."""
        timeout_s = params.get("timeout_s")
        if not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < 86400:
            raise AgentError(errors.INVALID, f"a timeout of {timeout_s!r} seconds cannot be")
        state = "unknown"
        try:
            _, state = await self._programs.run(
                ["systemctl", "is-system-running", "--wait"], timeout_s=timeout_s
            )
        except AgentError as exc:
            if exc.code == errors.TIMEOUT:
                raise
        await in_thread(os.sync)
        try:
            status, output = await self._programs.run(["fstrim", "-a"], timeout_s=timeout_s)
        except AgentError as exc:
            if exc.code == errors.TIMEOUT:
                raise
            status, output = 127, str(exc)
        if status != 0:
            _log.warning("fstrim: %s", output[-200:].strip())
        await in_thread(self._drop_caches)
        return {"state": state.strip()[:64], "is_trimmed": status == 0}

    async def shutdown(self, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
        """Sync and have the machine powered off; answer when that is under way."""
        await in_thread(os.sync)
        said = ""
        for argv in (["systemctl", "--no-block", "poweroff"], ["poweroff", "-f"]):
            try:
                status, output = await self._programs.run(argv, timeout_s=30)
            except AgentError as exc:
                status, output = 127, str(exc)
            if status == 0:
                return {}
            said += f"{argv[0]}: {output[-200:].strip()}; "
        raise AgentError(errors.FAILED, f"the machine cannot be powered off: {said}")

    def _drop_caches(self) -> None:
        try:
            (self._proc_sys / "vm/drop_caches").write_text("3\n")
        except OSError as exc:
            raise errors.from_os(exc, "drop caches") from exc


def time_in(params: dict[str, Any]) -> int:
    """Return the time of day in `params`, in nanoseconds, or raise `AgentError`."""
    now_ns = params.get("now_ns")
    if not isinstance(now_ns, int) or not _EARLIEST_S <= now_ns / 1e9 <= _LATEST_S:
        raise AgentError(errors.INVALID, f"{now_ns!r} is no time of day")
    return now_ns


def root_device(mountinfo: str) -> tuple[str, str]:
    """Return the kind of the root file system and the device it is on."""
    for line in reversed(mountinfo.splitlines()):
        fields, _, tail = line.partition(" - ")
        before, after = fields.split(), tail.split()
        if len(before) > 4 and before[4] == "/" and len(after) >= 2:
            device = Path(f"/sys/dev/block/{before[2]}/uevent")
            try:
                for item in device.read_text().splitlines():
                    if item.startswith("DEVNAME="):
                        return after[0], f"/dev/{item[8:]}"
            except OSError:
                pass
            return after[0], after[1]
    return "unknown", ""
