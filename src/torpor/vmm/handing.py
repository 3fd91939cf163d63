"""Files that go from us to the user that a VMM runs as, and back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from torpor.base.fsio import open_plain


def give_to_vmm(folder: Path, path: Path) -> None:
    """Let the user that runs the machine in `folder` own `path`. Blocks."""
    if os.geteuid() == 0:
        owner = (folder / "vm").stat()
        os.chown(path, owner.st_uid, owner.st_gid)
    path.chmod(0o600)


def take_over(written: Path, path: Path, *, limit_bytes: int) -> None:
    """Copy what the VMM wrote to `path`, ours alone, and remove the original. Blocks.

    The VMM's user may have put anything there: a link to a file of ours, a pipe, a file that never ends; and it
    may still have the original open.
    """
    with open_plain(written, os.O_RDONLY) as source:
        data = source.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"it is over {limit_bytes} bytes", str(written))
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as target:
        target.write(data)
    written.unlink(missing_ok=True)
