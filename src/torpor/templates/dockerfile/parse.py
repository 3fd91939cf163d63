"""The instructions of a Dockerfile, with their lines; what is not supported is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.errors import InvalidRequest

MOST_BYTES, MOST_INSTRUCTIONS = 1 << 20, 1000
SUPPORTED = ("FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "CMD", "ENTRYPOINT", "ARG")
IGNORED = ("LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL")
_REFUSED: Mapping[str, str] = {
    "ADD": "use COPY for files, and RUN with curl or tar for the rest",
    "VOLUME": "create a volume, and attach it: torpor create --volume",
    "SHELL": "name the shell in the RUN step: RUN bash -c '…'",
    "HEALTHCHECK": "give the checks to torpor watch, or to a change",
    "ONBUILD": "write the steps where they are to run",
}
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|$)")
_HEREDOC = re.compile(r"<<-?\s*[\"']?[A-Za-z_]")
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(\S+)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction."""

    keyword: str
    line: int
    flags: Mapping[str, str]
    value: str
    """What follows keyword and flags, its lines joined."""
    words: tuple[str, ...] | None
    """The value, if it is a JSON list of strings."""


class Script:
    """A Dockerfile that is being read; complaints name it and a line."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text

    def wrong(self, line: int, what: str, *, hint: str | None = None) -> InvalidRequest:
        """Return the error for a line."""
        return InvalidRequest(
            f"{self.path}, line {line}: {what}", hint=hint, file=self.path, line=line
        )


def read_script(path: Path) -> Script:
    """Return the Dockerfile at `path`. Raises `InvalidRequest`: it cannot be read, or is too large. Blocks."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise InvalidRequest(f"cannot read {path}: {exc.strerror}", file=path) from exc
    if len(data) > MOST_BYTES:
        raise InvalidRequest(f"{path} is over {MOST_BYTES} bytes", file=path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{path} is not UTF-8: {exc}", file=path) from exc
    if "\0" in text:
        raise InvalidRequest(f"{path} has a NUL, so it is no Dockerfile", file=path)
    return Script(path, text)


def instructions(script: Script) -> list[Instruction]:
    """Return the instructions, those without a meaning here (`IGNORED`) too.

    Raises:
        InvalidRequest: one is malformed or is not supported; the message has the line.
    """
    found = []
    for line, text in _logical_lines(script):
        keyword, _, rest = text.partition(" ")
        found.append(_instruction(script, line, keyword.upper(), rest.strip()))
        if len(found) > MOST_INSTRUCTIONS:
            raise script.wrong(line, f"there are over {MOST_INSTRUCTIONS} instructions")
    return found


def _logical_lines(script: Script) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each instruction: comments left out, continued lines joined."""
    lines = script.text.splitlines()
    escape = _escape(script, lines)
    begun, parts = 0, list[str]()
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if not parts:
            begun = number
            line = re.sub(r"^(\S+)\s+", r"\1 ", line)
        else:
            line = raw.rstrip()
        is_continued = line.endswith(escape)
        parts.append(line[: -len(escape)] if is_continued else line)
        if not is_continued:
            yield begun, "".join(parts)
            parts = []
    if parts:
        raise script.wrong(begun, f"the last line ends with {escape}, and nothing follows")


def _escape(script: Script, lines: list[str]) -> str:
    for number, line in enumerate(lines, start=1):
        found = _DIRECTIVE.fullmatch(line.strip())
        if found is None:
            break
        if found[1].lower() == "escape":
            if found[2] not in ("\\", "`"):
                raise script.wrong(number, f"escape is {found[2]!r}; \\ or ` is wanted")
            return found[2]
    return "\\"


def _instruction(script: Script, line: int, keyword: str, rest: str) -> Instruction:
    if keyword in _REFUSED:
        raise script.wrong(line, f"{keyword} is not supported", hint=_REFUSED[keyword])
    if keyword not in SUPPORTED and keyword not in IGNORED:
        raise script.wrong(
            line,
            f"{keyword[:40]!r} is no instruction that is supported",
            hint=f"supported: {', '.join(SUPPORTED)}",
        )
    flags = {}
    while found := _FLAG.match(rest):
        flags[found[1]] = found[2] or ""
        rest = rest[found.end() :]
    if not rest and keyword not in IGNORED:
        raise script.wrong(line, f"{keyword} has nothing after it")
    if keyword in ("RUN", "COPY") and _HEREDOC.search(rest):
        raise script.wrong(
            line,
            f"{keyword} has a here-document, which is not supported",
            hint="put the text into a file of the context and COPY it, or join the lines with \\",
        )
    return Instruction(keyword=keyword, line=line, flags=flags, value=rest, words=_json_words(rest))


def _json_words(text: str) -> tuple[str, ...] | None:
    if not text.startswith("["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return None
    return tuple(value)
