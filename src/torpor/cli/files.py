"""Copying in and out."""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import format_bytes
from torpor.cli.find import find
from torpor.cli.output import AsJson, print_json, stderr_is_terminal
from torpor.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from torpor.sdk.results import Transfer
    from torpor.sdk.sync_sandbox import Sandbox

_REMOTE = re.compile(r"([^/:]+):(/.*)", re.DOTALL)
"""As with scp: a path here that has a colon in it is written with a slash before that."""


def cp(
    source: Annotated[str, typer.Argument(help="A path here, or SANDBOX:/path.")],
    target: Annotated[str, typer.Argument(help="SANDBOX:/path, or a path here.")],
    user: Annotated[
        str | None, typer.Option("-u", "--user", help="The owner in the sandbox.")
    ] = None,
    skip_outside_links: Annotated[
        bool, typer.Option(help="Leave out links that lead outside, instead of refusing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy files and folders in and out of a sandbox.

    As with `cp -r`: into the target if that is a folder, else to that very name.
    """
    remote_source, remote_target = _REMOTE.fullmatch(source), _REMOTE.fullmatch(target)
    if (remote_source is None) == (remote_target is None):
        raise InvalidRequest(
            "one of the two has to be in a sandbox", hint="torpor cp ./file SANDBOX:/workspace/"
        )
    with _progress("copying") as progress:
        if remote_target is not None:
            sandbox = find(remote_target[1])
            place = _place_inside(sandbox, Path(source), remote_target[2])
            moved = sandbox.filesystem.upload(source, place, user=user, progress=progress)
        else:
            assert remote_source is not None
            sandbox = find(remote_source[1])
            place = str(_place_here(sandbox, remote_source[2], target))
            moved = sandbox.filesystem.download(
                remote_source[2], place, skip_outside_links=skip_outside_links, progress=progress
            )
    _report(moved, place, as_json)


def _place_inside(sandbox: Sandbox, source: Path, target: str) -> str:
    if target.endswith("/"):
        return posixpath.join(target, source.resolve().name)
    try:
        is_dir = sandbox.filesystem.stat(target).kind == "dir"
    except NotFound:
        is_dir = False
    return posixpath.join(target, source.resolve().name) if is_dir else target


def _place_here(sandbox: Sandbox, source: str, target: str) -> Path:
    """Return where `source` goes. Raises `NotFound` when that is in a folder that is not there."""
    path = Path(target)
    if path.is_dir():
        return path / posixpath.basename(posixpath.normpath(source))
    if target.endswith("/") and sandbox.filesystem.stat(source).kind != "dir":
        raise NotFound(f"there is no folder {target}", hint=f"make it: mkdir -p {target}")
    if not path.parent.is_dir():
        raise NotFound(f"there is no folder {path.parent}", hint=f"make it: mkdir -p {path.parent}")
    return path


def _report(moved: Transfer, place: str, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "target": place,
                "files": moved.files,
                "size_bytes": moved.size_bytes,
                "skipped": moved.skipped,
            }
        )
        return
    what = "1 file" if moved.files == 1 else f"{moved.files} files and folders"
    print(f"{what}, {format_bytes(moved.size_bytes)} to {place}")
    for name in moved.skipped:
        print(f"left out: {name} (a link that leads outside)")


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int | None], object] | None]:
    """Show a bar on a terminal while the context lasts; enter with what moves it."""
    if not stderr_is_terminal():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
