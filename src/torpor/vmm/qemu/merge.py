"""Making one disk layer of many with qemu-img, and proving that the guest sees the same disk.

Layers name no backing file, so every chain is spelled out. The merged layer begins as a copy of the newest one;
`qemu-img rebase` then adds to it all that would change if it lay directly over what is below the run. (`convert -B`
looks at the newest layer alone, and `commit` opens layers for writing.) `qemu-img compare` reads both whole disks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from torpor.base.aio import finish
from torpor.base.proc import HostCommandFailed, run
from torpor.errors import InsufficientResources, VmmFailed
from torpor.layers.lowly import lowly, make_for_reader
from torpor.layers.space import full_disk_told
from torpor.vmm.chains import chain, check_plain, format_of, needed, node

_TIMEOUT_S = 6 * 3600.0
_DIFFERENT = 1
"""How `qemu-img compare` ends when the content differs."""
_NAME_MOST = 1000
"""A qcow2 file holds a backing file's name, here a whole chain, of at most 1023 bytes."""


async def merge(qemu_img: Path, below: Sequence[Path], layers: Sequence[Path], out: Path) -> None:
    """Write to `out` (new) one layer that over `below` is the same disk as `layers` are, the oldest first each.

    With nothing below, the first of `layers` is the disk's first. Runs at the lowest priority; cancellation ends it. On
    any failure `out` is gone. `below` and `layers` are not
    opened for writing. Not fsynced.

    Raises:
        DataDamaged: a layer wants a file beside it, or is no disk layer.
        InsufficientResources: the disk is full.
        VmmFailed: it cannot be done, or the disk would not be the same.
    """
    if below and any(
        path.suffix != ".qcow2" for path in layers
    ):  # a whole disk of another driver's
        layers = needed(layers)
        await _whole(qemu_img, layers, out, checked=layers[1:])
        return
    if not below:  # a volume's chain, which begins with its own first layer
        layers = needed(layers)
        await _whole(qemu_img, layers, out, checked=[p for p in layers if p.suffix == ".qcow2"])
        return
    name = _short_name(below, out.parent)
    if len(name) > _NAME_MOST:
        raise VmmFailed(f"the chain of {len(below)} layers below {out} is too long to be named")
    try:
        await finish(asyncio.to_thread(_begin, layers, out), within_s=60.0)
        await _tool("cp", "--reflink=auto", "--sparse=always", str(layers[-1]), str(out))
        top = node(out, chain((*below, *layers[:-1])), writable=True)
        words = ("rebase", "-F", format_of(below[-1]), "-b", name, f"json:{json.dumps(top)}")
        await _img(qemu_img, *words, cwd=out.parent)
        await _img(qemu_img, "rebase", "-u", "-b", "", str(out))  # takes the name out again
        await asyncio.to_thread(check_plain, out)
        await _compare(qemu_img, (*below, *layers), (*below, out))
    except BaseException:
        await asyncio.to_thread(out.unlink, missing_ok=True)
        raise


async def _whole(
    qemu_img: Path, layers: Sequence[Path], out: Path, *, checked: Sequence[Path]
) -> None:
    """Write all that `layers` hold, which lie over nothing, to `out`; those `checked` have to be qcow2."""
    try:
        await finish(asyncio.to_thread(_begin, checked, out), within_s=60.0)
        words = ("convert", "-O", "qcow2", f"json:{json.dumps(chain(layers))}", str(out))
        await _img(qemu_img, *words)
        await asyncio.to_thread(check_plain, out)
        await _compare(qemu_img, layers, (out,))
    except BaseException:
        await asyncio.to_thread(out.unlink, missing_ok=True)
        raise


async def _compare(qemu_img: Path, one: Sequence[Path], two: Sequence[Path]) -> None:
    names = [f"json:{json.dumps(chain(files))}" for files in (one, two)]
    try:
        await _img(qemu_img, "compare", *names)
    except HostCommandFailed as exc:
        if exc.facts.get("status") == _DIFFERENT:
            raise VmmFailed(
                f"{two[-1]} is not the same disk as the {len(one) - len(two) + 1} layers that it was made of"
            ) from exc
        raise


async def _img(qemu_img: Path, *words: str, cwd: Path | None = None) -> None:
    await _tool(str(qemu_img), *words, cwd=cwd)


async def _tool(*words: str, cwd: Path | None = None) -> None:
    try:
        await run(lowly(words, confined=True), timeout_s=_TIMEOUT_S, cwd=cwd)
    except HostCommandFailed as exc:
        text = str(exc.facts.get("stderr"))
        if "No space left" in text:
            raise InsufficientResources(
                "the disk is full: layers could not be merged", hint="free disk space"
            ) from exc
        if words[1] == "compare" and exc.facts.get("status") == _DIFFERENT:
            raise
        raise VmmFailed(f"{words[0]} {words[1]} failed on disk layers: {text}") from exc


def _begin(layers: Sequence[Path], out: Path) -> None:
    for path in layers:
        check_plain(path)
    with full_disk_told(str(out)):
        make_for_reader(out)


def _short_name(below: Sequence[Path], folder: Path) -> str:
    """Return a name for a chain, as short as can be, that is right for who works in `folder`."""
    if len(below) == 1 and below[0].suffix != ".qcow2":
        return str(below[0])
    found: dict[str, object] | None = None
    for path in below:
        file = {"driver": "file", "filename": path.name if path.parent == folder else str(path)}
        above: dict[str, object] = {"driver": format_of(path), "file": file}
        found = above | {"backing": found} if path.suffix == ".qcow2" else above
    return f"json:{json.dumps(found, separators=(',', ':'))}"
