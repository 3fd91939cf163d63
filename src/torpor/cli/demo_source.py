"""What the demo copies into its sandbox: a source tree, without what a repository does not keep."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import torpor
from torpor.base import proc
from torpor.errors import InvalidRequest, LimitExceeded, TorporError

_LEFT_OUT = {
    ".git",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".tox",
    ".mypy_cache",
    ".ruff_cache",
    "build",
    "dist",
}
_MOST_BYTES = 512 << 20


def default_source() -> Path:
    """Return this project's own tree, if it runs from one, else the package itself."""
    package = Path(torpor.__file__).resolve().parent
    tree = package.parents[1]
    return tree if (tree / "pyproject.toml").is_file() else package


def stage(source: Path, target: Path) -> tuple[int, int]:
    """Copy the tree's files to `target`; return how many there are and their bytes.

    Of a git repository: the files git knows and those it does not ignore. Else all but caches and the like.

    Raises:
        InvalidRequest: `source` is no folder, or has no files.
        LimitExceeded: it has more than 512 MiB.
    """
    if not source.is_dir():
        raise InvalidRequest(
            f"{source} is no folder", hint="name the folder of a source tree: torpor demo PATH"
        )
    count = size = 0
    for name in _git_files(source) or _walked(source):
        path = source / name
        if path.is_symlink() or not path.is_file():
            continue
        count, size = count + 1, size + path.stat().st_size
        if size > _MOST_BYTES:
            raise LimitExceeded(
                f"{source} has more than {_MOST_BYTES >> 20} MiB of files",
                hint="name a smaller tree",
            )
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target / name)
    if not count:
        raise InvalidRequest(
            f"{source} has no files", hint="name the folder of a source tree: torpor demo PATH"
        )
    return count, size


def _git_files(source: Path) -> list[str] | None:
    """Return what git would keep of a folder; None when it is in no repository or git is missing."""
    git = shutil.which("git")
    if git is None:
        return None
    listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "."]
    try:
        found = asyncio.run(proc.run([git, "-C", str(source), *listing], timeout_s=60))
    except TorporError:
        return None
    return [os.fsdecode(name) for name in found.stdout.split(b"\0") if name]


def _walked(source: Path) -> list[str]:
    names = []
    for root, folders, files in os.walk(source):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        names += [str((Path(root) / name).relative_to(source)) for name in sorted(files)]
    return names
