"""Memory as files under `/memories`, for agents with a file-based memory tool.

A file is a fact (subject: its path, attribute: `content`), so every edit is a transaction that supersedes the
one before, with its history, and a deleted file is an ended fact. There are no folders apart from paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torpor.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from torpor.memory import checks
from torpor.model_memory import Authority, Fact, FactKind, Json, MemoryFile

if TYPE_CHECKING:
    from torpor.memory.space import Space

ROOT = "/memories"
MAX_FILE_BYTES = 256 << 10
MAX_PATH_CHARS = 200
_ATTRIBUTE = "content"
_SHOWN_LINES = 4


def check_path(path: str) -> str:
    """Return `path` if it is a file or folder below `/memories`, in its one normal form.

    Raises:
        InvalidRequest: it leaves `/memories`, or is written in a form that could mislead.
    """
    if not isinstance(path, str):
        raise InvalidRequest(f"{path!r:.80} is no path")
    if len(path) > MAX_PATH_CHARS:
        raise InvalidRequest(f"a path is at most {MAX_PATH_CHARS} characters")
    trimmed = path.rstrip("/")
    if trimmed == ROOT:
        return ROOT
    parts = trimmed.split("/")
    if parts[:2] != ["", "memories"]:
        raise InvalidRequest(f"{path!r} is not below {ROOT}", hint=f"paths begin with {ROOT}/")
    for part in parts[2:]:
        if part in ("", ".", "..") or not part.isprintable() or "\\" in part or "%" in part:
            raise InvalidRequest(f"{path!r} has a part {part!r} that cannot name a file")
    return trimmed


def check_file(subject: str, attribute: str, value: Json) -> None:
    """Raise `InvalidRequest` for a fact of kind `file` that is none: whoever claims it, the view has to show it."""
    text = value.get("text") if isinstance(value, dict) else None
    if check_path(subject) != subject or subject == ROOT or attribute != _ATTRIBUTE:
        raise InvalidRequest(f"{subject!r} with attribute {attribute!r} cannot name a file")
    if not isinstance(text, str):
        raise InvalidRequest(
            f"{subject} must have a value with its `text`", hint="write it with the file commands"
        )
    if len(text.encode("utf-8", "replace")) > MAX_FILE_BYTES:
        raise LimitExceeded(f"{subject} would be over {MAX_FILE_BYTES} bytes")


class MemoryFiles:
    """The six commands of a file-based memory tool on one space."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def view(self, path: str, view_range: tuple[int, int] | None = None) -> str:
        """Return a file's lines with numbers, or the names below a folder.

        Raises:
            NotFound: there is nothing at `path`.
            InvalidRequest: the range is not in the file.
        """
        where = check_path(path)
        found = self._find(where)
        if found is None:
            return self._listing(where)
        lines = found.content.split("\n")
        first, last = (1, len(lines)) if view_range is None else _range(view_range, len(lines))
        return "\n".join(f"{n:6}\t{lines[n - 1]}" for n in range(first, last + 1))

    def create(self, path: str, file_text: str) -> str:
        """Write a whole file, new or in place of the old one."""
        where = self._file_path(path)
        self._write(where, file_text, f"create {where}")
        return f"File created successfully at: {where}"

    def str_replace(self, path: str, old_str: str, new_str: str) -> str:
        """Replace a text that is in the file exactly once.

        Raises:
            NotFound: there is no such file, or the text is not in it.
            InvalidRequest: the text is in it more than once, or empty.
        """
        found = self._need(path)
        if not old_str:
            raise InvalidRequest("the text to replace is empty")
        count = found.content.count(old_str)
        if count == 0:
            raise NotFound(f"{old_str!r} is not in {found.path}")
        if count > 1:
            raise InvalidRequest(
                f"{old_str!r} is {count} times in {found.path}",
                hint="quote more of its surroundings",
            )
        at = found.content.index(old_str)
        text = found.content[:at] + new_str + found.content[at + len(old_str) :]
        self._write(found.path, text, f"str_replace {found.path}")
        line = text[:at].count("\n")
        shown = text.split("\n")[max(0, line - _SHOWN_LINES) : line + _SHOWN_LINES + 1]
        return f"The file {found.path} has been edited.\n" + "\n".join(shown)

    def insert(self, path: str, insert_line: int, insert_text: str) -> str:
        """Insert a text after a line; 0 is before the first.

        Raises:
            NotFound: there is no such file.
            InvalidRequest: there is no such line.
        """
        found = self._need(path)
        lines = found.content.split("\n")
        if not 0 <= insert_line <= len(lines):
            raise InvalidRequest(f"{found.path} has {len(lines)} lines, there is no {insert_line}")
        lines[insert_line:insert_line] = insert_text.removesuffix("\n").split("\n")
        self._write(found.path, "\n".join(lines), f"insert into {found.path}")
        return f"The file {found.path} has been edited."

    def delete(self, path: str) -> str:
        """Delete a file, or a folder with all below it; what they held stays in the history.

        Raises:
            NotFound: there is nothing at `path`.
        """
        where = check_path(path)
        doomed = [f for f in self.files() if f.path == where or f.path.startswith(f"{where}/")]
        if where == ROOT or not doomed:
            raise NotFound(f"there is no file {where}")
        with self._space.atomically():
            for found in doomed:
                self._space.expire(found.fact, reason=f"delete {found.path}")
        return f"Successfully deleted {where}"

    def rename(self, old_path: str, new_path: str) -> str:
        """Give a file another path.

        Raises:
            NotFound: there is no such file.
            Conflict: the new path is taken.
        """
        found = self._need(old_path)
        target = self._file_path(new_path)
        if self._find(target) is not None:
            raise Conflict(f"{target} exists", hint="delete it first")
        with self._space.atomically():
            self._write(target, found.content, f"rename {found.path} to {target}")
            self._space.expire(found.fact, reason=f"rename to {target}")
        return f"Successfully renamed {found.path} to {target}"

    def files(self) -> list[MemoryFile]:
        """Return all files, by path."""
        found = [f for f in self._space.facts(attribute=_ATTRIBUTE) if f.kind is FactKind.FILE]
        return sorted((_file(f) for f in found), key=lambda f: f.path)

    def _find(self, path: str) -> MemoryFile | None:
        for fact in self._space.facts(path, _ATTRIBUTE):
            if fact.kind is FactKind.FILE and fact.subject == path:
                return _file(fact)
        return None

    def _need(self, path: str) -> MemoryFile:
        where = check_path(path)
        found = self._find(where)
        if found is None:
            raise NotFound(f"there is no file {where}", path=where)
        return found

    def _file_path(self, path: str) -> str:
        where = check_path(path)
        if where == ROOT:
            raise InvalidRequest(f"{ROOT} is a folder")
        for other in self.files():
            if other.path.startswith(f"{where}/") or where.startswith(f"{other.path}/"):
                raise Conflict(f"{where} would be both a file and a folder ({other.path})")
            if other.path != where and other.path.casefold() == where.casefold():
                raise Conflict(f"{other.path} differs from {where} only in case")
        return where

    def _listing(self, folder: str) -> str:
        below = [f for f in self.files() if f.path.startswith(f"{folder}/")]
        if not below and folder != ROOT:
            raise NotFound(f"there is nothing at {folder}", path=folder)
        lines = [f"{f.size_bytes:>8}  {f.path}" for f in below]
        return "\n".join([f"Files below {folder}:", *lines])

    def _write(self, path: str, text: str, reason: str) -> None:
        if len(text.encode("utf-8", "replace")) > MAX_FILE_BYTES:
            raise LimitExceeded(f"{path} would be over {MAX_FILE_BYTES} bytes")
        if text:
            checks.content(text + "\n.", "the file", MAX_FILE_BYTES + 2)
        self._space.remember(
            path,
            _ATTRIBUTE,
            # A number makes each edit a value of its own: going back to an older text is an edit too.
            {"text": text, "edit": self._space.tx + 1},
            kind=FactKind.FILE,
            authority=Authority.AGENT_INFERRED,
            text=f"{path}\n{text}",
            reason=reason,
        )


def _file(fact: Fact) -> MemoryFile:
    text = str(fact.value["text"]) if isinstance(fact.value, dict) else ""
    return MemoryFile(fact.subject, text, fact.id, len(text.encode()))


def _range(given: tuple[int, int], lines: int) -> tuple[int, int]:
    first, last = given
    last = lines if last == -1 else last
    if not 1 <= first <= last <= lines:
        raise InvalidRequest(f"lines {first} to {last} are not in a file of {lines} lines")
    return first, last
