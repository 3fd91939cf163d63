"""Where Torpor keeps its things on a host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torpor.base.fsio import make_private_dir


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one daemon; `$TORPOR_HOME`, or /var/lib/torpor as root, or ~/.local/share/torpor."""

    root: Path

    @staticmethod
    def default() -> Home:
        """Return the home that the environment names."""
        named = os.environ.get("TORPOR_HOME")
        if named:
            return Home(Path(named).expanduser().absolute())
        if os.geteuid() == 0:
            return Home(Path("/var/lib/torpor"))
        data = os.environ.get("XDG_DATA_HOME")
        return Home((Path(data) if data else Path.home() / ".local/share") / "torpor")

    @property
    def database(self) -> Path:
        """The SQLite file with all rows."""
        return self.root / "torpor.db"

    @property
    def memory(self) -> Path:
        """The SQLite file with what agents know."""
        return self.root / "memory.db"

    @property
    def workflows(self) -> Path:
        """The SQLite file of the durable workflows, mode 0600; made when the first one begins."""
        return self.root / "workflows.db"

    @property
    def changes(self) -> Path:
        """What machines held before their changes, one folder a change that is open; made when needed."""
        return self.root / "changes"

    @property
    def databases(self) -> Path:
        """Databases' passwords, one file each, for its owner alone; made when needed."""
        return self.root / "databases"

    @property
    def drills(self) -> Path:
        """The evidence of drills, one JSON file each that is written once; made when needed."""
        return self.root / "drills"

    @property
    def driver(self) -> Path:
        """Names the driver that its machines have; see `torpor.vmm.choose`."""
        return self.root / "driver"

    @property
    def socket(self) -> Path:
        """The daemon's Unix socket, mode 0600."""
        return self.root / "torpord.sock"

    @property
    def daemon_lock(self) -> Path:
        """Held by the one daemon of this home for as long as it lives."""
        return self.root / "torpord.lock"

    @property
    def start_lock(self) -> Path:
        """Held by a client while it starts a daemon."""
        return self.root / "start.lock"

    @property
    def daemon_log(self) -> Path:
        """What the daemon logs when a client started it."""
        return self.root / "torpord.log"

    @property
    def access_log(self) -> Path:
        """One line for each request that the daemon answered."""
        return self.root / "access.log"

    @property
    def fingerprint_key(self) -> Path:
        """What requests with an idempotency key are hashed with, mode 0600."""
        return self.root / "fingerprint.key"

    @property
    def preview_key(self) -> Path:
        """What preview links are signed with, mode 0600."""
        return self.root / "preview.key"

    @property
    def templates(self) -> Path:
        """One folder a built template, named by its digest."""
        return self.root / "templates"

    @property
    def sandboxes(self) -> Path:
        """One folder a sandbox, named by its id."""
        return self.root / "sandboxes"

    @property
    def snapshots(self) -> Path:
        """One folder a snapshot, named by its id."""
        return self.root / "snapshots"

    @property
    def layers(self) -> Path:
        """Files that snapshots and sandboxes share, one a layer."""
        return self.root / "layers"

    @property
    def images(self) -> Path:
        """Whole RAM images made from layers; can be made again."""
        return self.root / "images"

    @property
    def builds(self) -> Path:
        """Template builds that clients asked for, one folder each; made when needed."""
        return self.root / "builds"

    @property
    def tmp(self) -> Path:
        """Work in progress; whatever is here when a daemon starts is rubbish."""
        return self.root / "tmp"

    def prepare(self) -> None:
        """Create the folders that are missing; the root is passable but not readable for others."""
        make_private_dir(self.root)
        self.root.chmod(0o711)  # each VMM runs under a uid of its own and must reach its folder
        for folder in (
            self.templates,
            self.sandboxes,
            self.snapshots,
            self.layers,
            self.images,
            self.tmp,
        ):
            make_private_dir(folder, mode=0o711)
            folder.chmod(0o711)
