"""Export and import as JSON lines; the format is in docs/formats/memory-export.md.

An export is the whole memory: every chained row, so that an import is the same memory with the same chain.
Vectors and the text index are made again; the recall log stays behind.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torpor.base.fsio import replacing
from torpor.errors import Conflict, DataDamaged, HostNotReady, InsufficientResources, NotFound
from torpor.memory import chain
from torpor.memory.rows import (
    EXPORTED,
    TABLES,
    Branch,
    EpisodeRow,
    FactRow,
    StateRow,
    Txn,
    columns,
)
from torpor.memory.soundness import Soundness
from torpor.memory.store import Store
from torpor.model_memory import Exported, SourceKind

FORMAT = "torpor-memory"
VERSION = 1
_MAX_LINE_BYTES = 16 << 20
_BY_NAME = {TABLES[t]: t for t in EXPORTED}


def encode(row: tuple[Any, ...]) -> bytes:
    """Return a row as one JSON line."""
    table = type(row)
    fields = dict(zip(columns(table), (_plain(v) for v in row), strict=True))
    line = {"table": TABLES[table], **fields}
    return json.dumps(line, ensure_ascii=False, sort_keys=True).encode() + b"\n"


def _plain(value: object) -> object:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def export(store: Store, path: Path) -> Exported:
    """Write the whole memory to `path`, atomically.

    Raises:
        InsufficientResources: the disk is full; what was at `path` is as it was.
        HostNotReady: there is no such folder, or it cannot be written.
    """
    with store.transaction():  # one moment of the memory, also while others write
        last = store.newest(Txn, {"tx": store.last_tx()})
        head = last.hash if last is not None else chain.GENESIS
        count = sum(store.count(table, {}) for table in EXPORTED)
        rows = (row for table in EXPORTED for row in store.stream(table))
        return write_lines(path, rows, count, head, store.meta("id_key") or "")


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn what the operating system says of writing `path` into our errors."""
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InsufficientResources(
                f"no space left for {path}; nothing was written", hint="free some space"
            ) from exc
        raise HostNotReady(f"{path} cannot be written: {exc.strerror}", path=str(path)) from exc


def write_lines(
    path: Path, rows: Iterable[tuple[Any, ...]], count: int, head: str, id_key: str
) -> Exported:
    """Write header, rows and checksum, a line at a time."""
    top = {"format": FORMAT, "version": VERSION, "head": head, "id_key": id_key, "rows": count}
    digest = hashlib.sha256()
    with written(path), replacing(path) as file:
        header = json.dumps(top, sort_keys=True).encode() + b"\n"
        for line in itertools.chain((header,), map(encode, rows)):
            digest.update(line)
            file.write(line)
        file.write(json.dumps({"sha256": digest.hexdigest()}).encode() + b"\n")
    return Exported(str(path), count, head)


def import_(store: Store, path: Path, *, verify: bool = True) -> Exported:
    """Read an export into an empty memory.

    Args:
        verify: refuse an export that does not hold together; without it, such as for a salvaged one, rows that
            cannot be are left out and counted as lost.

    Raises:
        Conflict: the memory is not empty.
        DataDamaged: the file is not what was exported, or cannot have been; nothing was written.
        HostNotReady: it is of a newer version.
    """
    rows = lost = last = 0
    sound = Soundness()
    with store.transaction():
        if store.last_tx():
            raise Conflict("the memory is not empty", hint="import into a new file")
        lines = _checked(path)
        top = next(lines)
        store.set_meta("id_key", str(top.get("id_key", "")))
        texts: dict[str, tuple[str, str, str]] = {}
        indexed: set[tuple[str, str]] = set()
        for line in lines:
            row = _decode(path, line)
            fault = sound.fault_of(row)
            if fault is not None:
                if verify:
                    raise _unsound(path, fault)
                lost += 1
                continue
            store.insert(row)
            rows += 1
            _index(store, row, texts, indexed)
            last = max(last, row[0] if isinstance(row, Txn) else row[1])
        if not verify:
            _go_on_after(store, last)
        report = chain.verify(store, str(top.get("head")) if verify else None)
        if verify:
            for fault in itertools.chain(sound.faults_at_the_end(), report.problems):
                raise _unsound(path, fault)
    return Exported(str(path), rows, report.head, lost)


def _go_on_after(store: Store, last: int) -> None:
    """Write a transaction after all that a salvage saved, if theirs are lost: what is written next comes after it."""
    found = store.last_tx()
    if found >= last:
        return
    before = store.newest(Txn, {"tx": found})
    branch = store.newest(Branch, {})
    at, prev_hash = (before.at, before.hash) if before is not None else (0, chain.GENESIS)
    digest, root = chain.reason_digest("", b""), chain.root_of([])
    name = branch.id if branch is not None else ""
    made = Txn(last, at, "system", "salvage", name, "", b"", digest, root, prev_hash, "")
    store.insert(made._replace(hash=chain.txn_hash(made)))


def _unsound(path: Path, fault: str) -> DataDamaged:
    return DataDamaged(
        f"{path} does not hold together: {fault}",
        hint="what a salvage saved is imported with verify=False (--salvaged)",
        path=str(path),
    )


def _index(
    store: Store,
    row: tuple[Any, ...],
    texts: dict[str, tuple[str, str, str]],
    indexed: set[tuple[str, str]],
) -> None:
    """Index an object on every branch where it has a state; rows of states come after their objects."""
    if isinstance(row, EpisodeRow):
        if row.source_kind != SourceKind.RECALLED:
            texts[row.id] = ("episode", row.session, row.content)
    elif isinstance(row, FactRow):
        texts[row.id] = ("fact", "", row.text)
    elif isinstance(row, StateRow) and row.object in texts:
        place = (row.object, row.branch)
        if place not in indexed:
            indexed.add(place)
            kind, session, text = texts[row.object]
            store.index(row.object, kind, row.branch, session, row.tx, text)


def _checked(path: Path) -> Iterator[dict[str, Any]]:
    """Yield header and rows of a file whose checksum is right."""
    if not path.is_file():
        raise NotFound(f"{path} does not exist", path=str(path))
    digest = hashlib.sha256()
    previous = b""
    with path.open("rb") as file:
        while line := file.readline(_MAX_LINE_BYTES):
            if previous:
                digest.update(previous)
            previous = line
    if _parse(path, previous).get("sha256") != digest.hexdigest():
        raise DataDamaged(f"{path} is cut short or was changed", path=str(path))
    with path.open("rb") as file:
        top = _parse(path, file.readline(_MAX_LINE_BYTES))
        if top.get("format") != FORMAT:
            raise DataDamaged(f"{path} is no export of a memory", path=str(path))
        if top.get("version") != VERSION:
            raise HostNotReady(
                f"{path} has format version {top.get('version')}; this Torpor reads {VERSION}",
                hint="update Torpor",
            )
        yield top
        while line := file.readline(_MAX_LINE_BYTES):
            found = _parse(path, line)
            if "table" in found:
                yield found


def _parse(path: Path, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise DataDamaged(f"{path} has a line that is not JSON", path=str(path)) from exc
    if not isinstance(found, dict):
        raise DataDamaged(f"{path} has a line that is no object", path=str(path))
    return found


def _decode(path: Path, line: dict[str, Any]) -> tuple[Any, ...]:
    table = _BY_NAME.get(line.get("table", ""))
    if table is None:
        raise DataDamaged(f"{path} has rows of an unknown table", path=str(path))
    names = columns(table)
    try:
        values = [
            base64.b64decode(line[n]) if n == "salt" and line[n] is not None else line[n]
            for n in names
        ]
    except (KeyError, ValueError, TypeError) as exc:
        raise DataDamaged(f"{path} has a row of {line['table']} that is incomplete") from exc
    made: tuple[Any, ...] = table._make(values)  # type: ignore[attr-defined]  # a NamedTuple
    return made
