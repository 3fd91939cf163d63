"""What the agent's profile names: watched files, variables, skills, jobs and the like, databases, versions."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from itertools import chain
from typing import Any

from torpor_guest.inventory import documents
from torpor_guest.inventory.budget import Budget, Section
from torpor_guest.inventory.content import FILE_MOST, Reader
from torpor_guest.inventory.keyed import Keyed
from torpor_guest.inventory.loose import NotUnderstood
from torpor_guest.inventory.walk import Found, Walker
from torpor_guest.users import group_name, user_name

HOMES_MOST = 4
_ENV_MOST = 1 << 20
_FOLDER_FILES_MOST = 2000
_VARIABLE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]{0,127})[ \t]*=[ \t]*(.*)")
_VERSION_FILE_MOST = 1 << 20
_VERSION = re.compile(r"[^\x00-\x1f]{1,100}")


class Agent:
    """Looks for what a profile names. Paths in it are absolute, or relative to each of `homes`."""

    def __init__(
        self, walker: Walker, reader: Reader, keyed: Keyed, budget: Budget, homes: list[str]
    ) -> None:
        self._walker = walker
        self._reader = reader
        self._keyed = keyed
        self._budget = budget
        self._homes = homes

    def places(self, pattern: str) -> Iterator[tuple[str, str]]:
        """Yield a pattern as absolute ones, with what is put behind the names of what each fits."""
        if pattern.startswith("/"):
            yield pattern, ""
            return
        for index, home in enumerate(self._homes):
            yield f"{home}/{pattern}", f" in {home}" if index else ""

    def files(self, patterns: list[str], secret: set[str], section: Section) -> None:
        """List the files that patterns fit, and all below the folders that they fit."""
        done: set[str] = set()
        for pattern in patterns:
            for place, _ in self.places(pattern):
                for found in self._walker.glob(place, section):
                    below = self._walker.below(found, section) if found.is_folder else ()
                    for each in chain((found,), below):  # each is open only until the next
                        if each.path not in done and not each.is_folder:
                            done.add(each.path)
                            self._file(each, each.path in secret, section)

    def _file(self, found: Found, is_secret: bool, section: Section) -> None:
        info = found.stat
        shown: dict[str, object] = {
            "mode": f"{stat.S_IMODE(info.st_mode):04o}",
            "owner": f"{user_name(info.st_uid)}:{group_name(info.st_gid)}",
        }
        if found.is_link:
            try:
                target = os.readlink(found.name, dir_fd=found.folder)
            except OSError:
                target = ""
            section.add(
                found.path, {"kind": "symlink"}, {"target": self._keyed.of_value("target", target)}
            )
        elif not found.is_file:
            section.add(found.path, shown | {"kind": "other"})
        elif is_secret:
            section.add(found.path, shown)  # its size would tell how long the values are
        else:
            shown["size_bytes"] = info.st_size
            if info.st_size > FILE_MOST:
                section.add(found.path, shown | {"modified": int(info.st_mtime)})
                return
            digest = self._reader.digest(found)
            if digest is None:
                section.note(f"{found.path} could not be read")
                section.add(found.path, shown, unknown=["content"])
            else:
                section.add(found.path, shown, {"content": digest})

    def env(self, patterns: list[str], section: Section) -> set[str]:
        """List the names of the variables in env files; return the paths of the files."""
        paths = set()
        for pattern in patterns:
            for place, _ in self.places(pattern):
                for found in self._walker.glob(place, section):
                    if not found.is_file or found.path in paths:
                        continue
                    paths.add(found.path)
                    try:
                        text = self._reader.read(found, _ENV_MOST).decode("utf-8", "replace")
                    except OSError as exc:
                        section.cut(f"{found.path} cannot be read: {exc.strerror}")
                        continue
                    self._variables(found.path, text, section)
        return paths

    def _variables(self, path: str, text: str, section: Section) -> None:
        values: dict[str, str] = {}
        for line in text.splitlines():
            found = _VARIABLE.fullmatch(line.strip())
            if found:
                values[found[1]] = found[2]
        for name, value in values.items():
            entry = f"{path}: {name}"
            section.add(entry, {}, {"value": self._keyed.of_value(f"env {entry}", value)})

    def source(self, source: dict[str, Any], section: Section) -> None:
        """List what one place of a profile holds."""
        for place, suffix in self.places(source["path"]):
            fixed = _fixed(place)
            for found in self._walker.glob(place, section):
                if source["how"] == "folders":
                    if found.is_folder:
                        self._folder(found, fixed, suffix, source.get("containing"), section)
                elif source["how"] == "files":
                    if found.is_file:
                        self._entry_file(found, fixed, suffix, section)
                elif found.is_file:
                    self._document(found, source, suffix, section)

    def _folder(
        self, found: Found, fixed: str, suffix: str, containing: str | None, section: Section
    ) -> None:
        digest, number, size, is_known, has_it = (
            self._keyed.hasher(),
            0,
            0,
            True,
            containing is None,
        )
        for each in self._walker.below(found, section):
            if each.is_folder:
                continue
            has_it = has_it or each.path == f"{found.path}/{containing}"
            number += 1
            content = self._reader.digest(each) if each.is_file else "link"
            is_known = is_known and content is not None and number <= _FOLDER_FILES_MOST
            size += each.stat.st_size if each.is_file else 0
            name = each.path[len(found.path) :]
            digest.update(
                f"{name}\0{content}\0{each.stat.st_mode & 0o111}\0".encode(
                    "utf-8", "surrogateescape"
                )
            )
        if not has_it:
            return
        shown: dict[str, object] = {"files": number, "size_bytes": size}
        name = found.path[len(fixed) :] + suffix
        if is_known:
            section.add(name, shown, {"content": digest.hexdigest()})
        else:
            section.add(name, shown, unknown=["content"])

    def _entry_file(self, found: Found, fixed: str, suffix: str, section: Section) -> None:
        digest = self._reader.digest(found)
        name, shown = found.path[len(fixed) :] + suffix, {"size_bytes": found.stat.st_size}
        if digest is not None:
            section.add(name, dict(shown), {"content": digest})
        elif found.stat.st_size > FILE_MOST:
            section.add(name, {**shown, "modified": int(found.stat.st_mtime)})
        else:
            section.note(f"{found.path} could not be read")
            section.add(name, dict(shown), unknown=["content"])

    def _document(
        self, found: Found, source: dict[str, Any], suffix: str, section: Section
    ) -> None:
        what = f"document {self._keyed.key_id} {section.kind} {source!r}"
        try:
            made = self._reader.cache.of_file(
                what, found, lambda: self._read(found, source, section.kind)
            )
        except (NotUnderstood, OSError) as exc:
            section.cut(f"{found.path} is not understood: {exc}")
            return
        for name, shown, hidden in made:
            section.add(name + suffix, dict(shown), dict(hidden))

    def _read(
        self, found: Found, source: dict[str, Any], kind: str
    ) -> list[tuple[str, dict[str, object], dict[str, str]]]:
        text = self._reader.read(found, documents.DOCUMENT_MOST).decode("utf-8", "replace")
        part = documents.pick(documents.read(text, source["how"]), source.get("at") or "")
        may_show, by_fields = documents.shows(source), bool(source.get("fields"))
        made = []
        for name, fields in documents.elements(part, source):
            self._budget.check_time()
            shown: dict[str, object] = {}
            hidden: dict[str, str] = {}
            for field, value in fields.items():
                if (
                    may_show(name if by_fields else field)
                    and (text_of := _showable(value)) is not None
                ):
                    shown[field] = text_of
                else:
                    hidden[field] = self._keyed.of_value(f"{kind} {name} {field}", value)
            made.append((name, shown, hidden))
        return made

    def versions(self, versions: list[dict[str, Any]], section: Section) -> None:
        """List the versions that files and checkouts tell."""
        for version in versions:
            if version.get("file"):
                self._version_file(version, section)
            elif version.get("git"):
                self._version_git(version, section)

    def _version_file(self, version: dict[str, Any], section: Section) -> None:
        for place, suffix in self.places(version["file"]):
            for found in self._walker.glob(place, section):
                try:
                    text = self._reader.read(found, _VERSION_FILE_MOST).decode("utf-8", "replace")
                except OSError:
                    continue
                value: object = None
                if version.get("pattern"):
                    match = re.search(version["pattern"], text)
                    value = match[match.re.groups and 1] if match else None
                else:
                    try:
                        value = documents.pick(documents.read(text, "json"), version["at"])
                    except NotUnderstood:
                        value = None
                if isinstance(value, str) and _VERSION.fullmatch(value):
                    section.add(version["name"] + suffix, {"version": value})

    def _version_git(self, version: dict[str, Any], section: Section) -> None:
        for place, suffix in self.places(version["git"]):
            commit = self._commit(place, section)
            if commit:
                section.add(version["name"] + suffix, {"version": commit})

    def _commit(self, checkout: str, section: Section) -> str | None:
        head = self._line(f"{checkout}/.git/HEAD", section)
        if head is None or not head.startswith("ref: "):
            return head if head and re.fullmatch("[0-9a-f]{40,64}", head) else None
        ref = head[5:].strip()
        if not re.fullmatch(r"refs/[A-Za-z0-9][A-Za-z0-9_./-]*", ref) or ".." in ref:
            return None
        line = self._line(f"{checkout}/.git/{ref}", section)
        if line is None:
            packed = self._text(f"{checkout}/.git/packed-refs", section) or ""
            rows = (row.split(" ") for row in packed.splitlines())
            line = next((row[0] for row in rows if len(row) == 2 and row[1] == ref), None)
        return line if line and re.fullmatch("[0-9a-f]{40,64}", line) else None

    def _line(self, path: str, section: Section) -> str | None:
        text = self._text(path, section)
        return text.split("\n")[0].strip() if text else None

    def _text(self, path: str, section: Section) -> str | None:
        for found in self._walker.glob(path, section):
            if found.is_file:
                try:
                    return self._reader.read(found, _VERSION_FILE_MOST).decode("utf-8", "replace")
                except OSError:
                    return None
        return None


def _fixed(pattern: str) -> str:
    """Return the folders of a pattern before its first `*`, with a slash at the end."""
    parts = pattern.split("/")
    first = next(
        (index for index, part in enumerate(parts) if re.search(r"[*?[]", part)), len(parts) - 1
    )
    return "/".join(parts[:first]) + "/"


def _showable(value: object) -> object:
    """Return a value as it is shown; None: it is nothing to be shown."""
    if isinstance(value, bool) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63):
        return value
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    return value if isinstance(value, str) and documents.is_name(value) else None
