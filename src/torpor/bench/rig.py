"""`Rig`: what every measurement is given, and the one place that knows what was made and has to go."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torpor.base.fsio import make_private_dir, read_json
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.bench.floor import Floor
from torpor.bench.floor_firecracker import FirecrackerFloor
from torpor.bench.floor_qemu import QemuFloor
from torpor.errors import Conflict, HostNotReady, InvalidRequest, NotFound, TorporError
from torpor.model import TemplateInfo
from torpor.sdk.client import Client
from torpor.sdk.sync_sandbox import Sandbox
from torpor.sdk.sync_snapshots import Snapshot
from torpor.vmm.base import Driver

FLOORS: dict[str, type[Floor]] = {"qemu": QemuFloor, "firecracker": FirecrackerFloor}
"""By the driver's name."""
_LOOKS_MOST = 20
_LOOK_AGAIN_S = 0.5
_TTL_SECONDS = 4 * 3600
"""If we are killed before we can delete: they end by themselves."""


class Rig:
    """One home, its daemon and the floor beside it; on leaving the context all that was made is gone."""

    def __init__(
        self,
        home: Home,
        template: TemplateInfo,
        driver: Driver,
        *,
        quick: bool,
        say: Callable[[str], None],
    ) -> None:
        self.home = home
        self.driver = driver
        """That of the floor's machines, and of the daemon's."""
        self.template = template
        self.quick = quick
        self.say = say
        self.client = Client(home=home.root)
        self.folder = home.tmp / new_id("bench")
        self._mark = {"made-by": "torpor bench", "run": self.folder.name}
        self._gone: dict[str, Sandbox] = {}
        """Deleted sandboxes that may still have snapshots."""

    def __enter__(self) -> Rig:
        make_private_dir(self.folder, mode=0o711)
        self.folder.chmod(0o711)
        self.floor = FLOORS[self.driver.name](self.home, self.folder)
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self.clear()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self) -> None:
        """End all that was made and is left: machines by hand, sandboxes, then their snapshots.

        The daemon is asked what there is: a create that was broken off makes its sandbox all the same, and may do
        so after we have looked once.
        """
        self.floor.close()
        pause = threading.Event()
        for _ in range(_LOOKS_MOST):
            left = list(Sandbox.list(metadata=self._mark, client=self.client))
            if not left and not self._gone:
                return
            for sandbox in left:
                sandbox.delete()
                self._gone[sandbox.id] = sandbox
            for sandbox in list(self._gone.values()):
                with contextlib.suppress(Conflict):  # one is being made from it; look again
                    self._drop_snapshots(sandbox)
            pause.wait(_LOOK_AGAIN_S)
        self.say(f"left behind: sandboxes with the metadata {self._mark}, or their snapshots")

    def times(self, whole: int, quick: int) -> int:
        """Return how often something is measured."""
        return quick if self.quick else whole

    def times_of(self, whole: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
        """Return what sizes are measured."""
        return quick if self.quick else whole

    # ---- Torpor's machines ----

    def create(self, **options: Any) -> Sandbox:
        """Make a sandbox of the template.

        Raises:
            HostNotReady: the daemon's machines have another driver than the floor's.
        """
        made = Sandbox.create(
            self.template.name,
            ttl_seconds=_TTL_SECONDS,
            metadata=self._mark,
            client=self.client,
            **options,
        )
        if made.info.driver != self.driver.name:
            raise HostNotReady(
                f"the daemon of {self.home.root} makes machines of {made.info.driver}; "
                f"this command would set them beside {self.driver.name}",
                hint="let both have the same TORPOR_DRIVER, TORPOR_ACCEL and TORPOR_FIRECRACKER",
            )
        return made

    def restore(self, snapshot: Snapshot) -> Sandbox:
        """Make a sandbox from a snapshot."""
        return snapshot.restore(ttl_seconds=_TTL_SECONDS, metadata=self._mark)

    def fork(self, source: Sandbox | Snapshot, count: int) -> list[Sandbox]:
        """Fork; raises the first failure, if there is one."""
        found = source.fork(count=count, ttl_seconds=_TTL_SECONDS, metadata=self._mark)
        for failure in found:
            if isinstance(failure, TorporError):
                raise failure
        return [fork for fork in found if not isinstance(fork, TorporError)]

    def drop(self, *sandboxes: Sandbox) -> None:
        """Delete sandboxes with their snapshots, from which no other sandbox may have been made."""
        for sandbox in sandboxes:
            sandbox.delete()
            self._gone[sandbox.id] = sandbox
            self._drop_snapshots(sandbox)

    def _drop_snapshots(self, sandbox: Sandbox) -> None:
        for snapshot in sandbox.snapshots():
            with contextlib.suppress(NotFound):
                snapshot.delete()
        del self._gone[sandbox.id]

    @contextlib.contextmanager
    def sandbox(self, **options: Any) -> Iterator[Sandbox]:
        """Enter with a new sandbox, which is gone afterwards; if the body fails, at the latest with the rig."""
        sandbox = self.create(**options)
        yield sandbox
        self.drop(sandbox)

    def vmm(self, sandbox: Sandbox) -> tuple[int, Path]:
        """Return the process of a sandbox's VMM and the file that its memory maps."""
        record = read_json(self.home.sandboxes / sandbox.id / "vmm.json", limit_bytes=65536)
        if not isinstance(record, dict):
            raise InvalidRequest(f"sandbox {sandbox.id} has no record of its process")
        return int(record["pid"]), Path(record["ram"])


def root(sandbox: Sandbox, command: str) -> str:
    """Run a command as root and return its output. Raises `CommandFailed`."""
    return sandbox.exec(command, user="root", cwd="/", timeout_seconds=300, check=True).stdout
