"""Who may have a volume: many that read, or one that writes. Pure: rows in, rows out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from torpor.db.volumes import VolumeRow
from torpor.errors import Conflict, InvalidRequest, LimitExceeded, VolumeHeld
from torpor.model_volumes import HolderState, VolumeHolder


def taken(row: VolumeRow, holder: VolumeHolder) -> VolumeRow:
    """Return the volume with one more holder; a writer makes its overlay one that something may be in.

    Raises:
        VolumeHeld: another writes, or the new one would write while others read.
    """
    others = tuple(h for h in row.holders if h.sandbox_id != holder.sandbox_id)
    in_the_way = others if not holder.read_only else [h for h in others if not h.read_only]
    if in_the_way:
        raise held(row, in_the_way, "read" if holder.read_only else "written")
    layers = row.layers
    if not holder.read_only:
        layers = replace(layers, written=True, clean=False)
    return replace(row, holders=(*others, holder), layers=layers)


def released(row: VolumeRow, sandbox_id: str) -> VolumeRow:
    """Return the volume without that holder."""
    return replace(row, holders=tuple(h for h in row.holders if h.sandbox_id != sandbox_id))


def in_state(row: VolumeRow, sandbox_id: str, state: HolderState) -> VolumeRow:
    """Return the volume with that holder in another state."""
    holders = (replace(h, state=state) if h.sandbox_id == sandbox_id else h for h in row.holders)
    return replace(row, holders=tuple(holders))


def held(row: VolumeRow, holders: Iterable[VolumeHolder], want: str) -> VolumeHeld:
    """Return the error that names who has it."""
    found = tuple(holders)
    who = ", ".join(
        f"{h.sandbox_id} {'reads' if h.read_only else 'writes'} it at {h.path}" for h in found
    )
    first = found[0]
    return VolumeHeld(
        f"volume {row.name} cannot be {want} now: {who}",
        hint=f"detach it there: torpor volume detach {first.sandbox_id} {first.path}",
        volume=row.name,
        holders=[h.sandbox_id for h in found],
    )


def check_free_path(path: str, others: Iterable[VolumeHolder], sandbox_id: str) -> None:
    """Raise `Conflict` when a path is, or lies in or around, one where another volume is."""
    for other in others:
        one, two = f"{path}/", f"{other.path}/"
        if one.startswith(two) or two.startswith(one):
            raise Conflict(
                f"sandbox {sandbox_id} has a volume at {other.path}, which {path} is or lies in or around",
                hint="choose another path",
                path=path,
            )


def check_readable(row: VolumeRow) -> None:
    """Raise `Conflict` when a volume cannot be mounted read-only: its journal is to be replayed first."""
    if not row.layers.clean:
        raise Conflict(
            f"volume {row.name} cannot be mounted read-only: the machine that wrote to it last ended without unmounting it",
            hint="attach it read-write once, which replays its journal, and detach it",
            volume=row.name,
        )


def free_slot(
    taken_slots: Collection[int], slots: Sequence[int], sandbox_id: str, what: str
) -> int:
    """Return the first place that is free; `what`: to read or to write. Raises `LimitExceeded`."""
    for slot in slots:
        if slot not in taken_slots:
            return slot
    raise LimitExceeded(
        f"sandbox {sandbox_id} has {len(taken_slots)} volumes; its machine has {len(slots)} places for volumes to {what}",
        hint="detach one",
    )


_TREES = ("/proc", "/sys", "/dev", "/run/torpor", "/var/lib/torpor", "/etc/torpor", "/boot")
"""Neither these nor what lies in them."""
_SYSTEM = (
    "/bin",
    "/etc",
    "/lib",
    "/lib64",
    "/run",
    "/sbin",
    "/usr",
    "/var",
    "/var/lib",
    "/var/run",
)
"""What the machine itself lives on: a file system there hides it. What lies in them is free."""


def check_path(path: str) -> str:
    """Return `path` if a volume can be mounted there. Raises `InvalidRequest`."""
    parts = path.split("/")[1:]
    plain = path.startswith("/") and all(part not in ("", ".", "..") for part in parts)
    if not plain or not path.isprintable() or len(path.encode()) > 1024:
        raise InvalidRequest(
            f"{path[:200]!r} is no path for a volume",
            hint="give an absolute path without '.', '..' and a '/' at its end, such as /data",
        )
    in_tree = any(path == tree or path.startswith(f"{tree}/") for tree in _TREES)
    if path == "/" or path in _SYSTEM or in_tree:
        raise InvalidRequest(
            f"no volume can be mounted at {path}", hint="choose a path such as /data"
        )
    return path
