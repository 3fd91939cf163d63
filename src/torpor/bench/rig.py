"""`Rig`: what every measurement is given, and the one place that knows what was made and has to go."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torpor.base.fsio import make_private_dir, read_json
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.bench.floor import Floor
from torpor.errors import InvalidRequest, NotFound, TorporError
from torpor.model import TemplateInfo
from torpor.sdk.client import Client
from torpor.sdk.sync_sandbox import Sandbox
from torpor.sdk.sync_snapshots import Snapshot

_TTL_SECONDS = 4 * 3600
"""If we are killed before we can delete: they end by themselves."""


class Rig:
    """One home, its daemon and the floor beside it; on leaving the context all that was made is gone."""

    def __init__(
        self, home: Home, template: TemplateInfo, *, quick: bool, say: Callable[[str], None]
    ) -> None:
        self.home = home
        self.template = template
        self.quick = quick
        self.say = say
        self.client = Client(home=home.root)
        self.folder = home.tmp / new_id("bench")
        self._mark = {"made-by": "torpor bench", "run": self.folder.name}
        self._half_gone: dict[str, Sandbox] = {}

    def __enter__(self) -> Rig:
        make_private_dir(self.folder, mode=0o711)
        self.folder.chmod(0o711)
        self.floor = Floor(self.home, self.folder)
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self.floor.close()
            # asked for, not remembered: a create that was broken off made one all the same
            left = list(Sandbox.list(metadata=self._mark, client=self.client))
            self.drop(*left, *self._half_gone.values())
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def times(self, whole: int, quick: int) -> int:
        """Return how often something is measured."""
        return quick if self.quick else whole

    def times_of(self, whole: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
        """Return what sizes are measured."""
        return quick if self.quick else whole

    # ---- Torpor's machines ----

    def create(self, **options: Any) -> Sandbox:
        """Make a sandbox of the template."""
        return Sandbox.create(
            self.template.name,
            ttl_seconds=_TTL_SECONDS,
            metadata=self._mark,
            client=self.client,
            **options,
        )

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
        """Delete sandboxes with their snapshots; all are tried before a failure is raised."""
        failures: list[TorporError] = []
        for sandbox in {s.id: s for s in sandboxes}.values():
            self._half_gone[sandbox.id] = sandbox
            try:
                sandbox.delete()
                for snapshot in sandbox.snapshots():
                    with contextlib.suppress(NotFound):
                        snapshot.delete()
                del self._half_gone[sandbox.id]
            except TorporError as exc:
                failures.append(exc)
        if failures:
            raise failures[0]

    @contextlib.contextmanager
    def sandbox(self, **options: Any) -> Iterator[Sandbox]:
        """Enter with a new sandbox, which is gone afterwards."""
        sandbox = self.create(**options)
        try:
            yield sandbox
        finally:
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
