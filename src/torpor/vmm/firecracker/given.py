"""The files of ours that a machine has: in a jail there are none but those in its folder `in/`, which is ours.

That folder is there while a jail is. In it are hard links to the files, and where it is missing the machine opens the
files themselves. All of this blocks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from pathlib import Path

from torpor.errors import HostNotReady

GIVEN = "in"


def give(folder: Path, file: Path) -> Path:
    """Let the machine in `folder` have `file`; return the name by which it opens it.

    Raises:
        HostNotReady: it lies on another file system than the jail.
    """
    given = folder / GIVEN
    if not given.is_dir():
        return file
    link = given / file.name
    try:
        link.hardlink_to(file)
    except FileExistsError:
        if not link.samefile(file):
            link.unlink()
            link.hardlink_to(file)
    except OSError as exc:
        if exc.errno != errno.EXDEV:
            raise
        raise HostNotReady(
            f"{file} is not on the file system of {folder}, and cannot be given into a jail there",
            hint="keep the whole home on one file system, or let TORPOR_JAILER be none for the daemon",
        ) from exc
    return Path(GIVEN, file.name)


def take_all_but(folder: Path, kept: Collection[str]) -> None:
    """Let the machine in `folder` open only the files of these names; what else it has open, it keeps."""
    given = folder / GIVEN
    if given.is_dir():
        for link in given.iterdir():
            if link.name not in kept:
                link.unlink(missing_ok=True)


def of(folder: Path, opened: Path) -> Path | None:
    """Return the file that the machine was given, for the name by which it has it open; None: it is none of these.

    The name is the kernel's, but what lies at it may be the machine's own: in a jail all but what is in our folder,
    and else what is in `vm/`.
    """
    given = folder / GIVEN
    if given.is_dir():
        return given / opened.name if opened.parent == Path(os.sep, GIVEN) else None
    is_foreign = not opened.is_absolute() or (folder / "vm").resolve() in opened.parents
    return None if is_foreign else opened
