"""What a Dockerfile means on a base: steps with everything filled in, and the settings of what comes out."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torpor.errors import InvalidRequest
from torpor.templates.dockerfile.parse import IGNORED, Instruction, Script, instructions
from torpor.templates.dockerfile.words import BadWordError, fill, split

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What `$PATH` stands for on a base that sets none."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?")
_MODE = re.compile(r"0?[0-7]{3,4}")
_ONCE = "one stage is supported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run a command in the machine."""

    line: int
    command: str | tuple[str, ...]
    env: Mapping[str, str]
    """Of the image as it is by then, and the build arguments."""
    user: str
    cwd: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Copy files of the context into the machine."""

    line: int
    sources: tuple[str, ...]
    """Patterns below the context."""
    target: str
    """An absolute path; with a `/` at its end a folder."""
    owner: str = ""
    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFolder:
    """Make a folder in the machine, if it is missing."""

    line: int
    path: str


BuildStep = Run | Copy | MakeFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Settings of what a Dockerfile builds on."""

    env: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    cwd: str = "/"
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """A Dockerfile on a base."""

    steps: tuple[BuildStep, ...]
    env: Mapping[str, str]
    user: str
    cwd: str
    command: tuple[str, ...]
    user_line: int | None = None
    """The last USER's; None: it is the base's user."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """What a Dockerfile begins with."""

    base: str
    """The word after FROM."""
    line: int
    args: Mapping[str, str]
    """ARGs from before it."""
    rest: tuple[Instruction, ...]


def head_of(script: Script) -> Head:
    """Return the base and what follows it.

    Raises:
        InvalidRequest: it does not begin with one FROM, or an instruction is malformed or not supported.
    """
    args: dict[str, str] = {}
    found = instructions(script)
    for number, item in enumerate(found):
        if item.keyword == "ARG":
            args |= _arg(script, item, args, {})
        elif item.keyword == "FROM":
            rest = tuple(found[number + 1 :])
            for later in rest:
                if later.keyword == "FROM":
                    raise script.wrong(later.line, f"a second FROM; {_ONCE}", hint="build in two")
            return Head(_base(script, item, args), item.line, args, rest)
        elif item.keyword not in IGNORED:
            raise script.wrong(item.line, f"{item.keyword} before FROM")
    raise script.wrong(1, "there is no FROM", hint="begin with FROM base")


def _base(script: Script, item: Instruction, args: Mapping[str, str]) -> str:
    platform = item.flags.get("platform", "linux/amd64")
    _only_flags(script, item, {"platform"})
    if platform != "linux/amd64":
        raise script.wrong(item.line, f"the platform is {platform!r}; linux/amd64 is wanted")
    words = _split(script, item, args)
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise script.wrong(item.line, "FROM wants one base, and may name it: FROM BASE [AS NAME]")
    if words[0] == "scratch":
        raise script.wrong(
            item.line,
            "FROM scratch has no Python and no shell, which a sandbox needs",
            hint="FROM base, another template, or the path of an image or a root file system",
        )
    return words[0]


def meaning_of(script: Script, head: Head, base: Base) -> Meaning:
    """Return what the instructions after FROM mean on `base`. Raises `InvalidRequest`."""
    state = _State(script, head, base)
    for item in head.rest:
        if item.keyword in IGNORED:
            state.notes.append(f"line {item.line}: {item.keyword} has no meaning here")
            continue
        state.take(item)
    return Meaning(
        steps=tuple(state.steps),
        env=state.env,
        user=state.user,
        user_line=state.user_line,
        cwd=state.cwd,
        command=(*state.entrypoint, *state.cmd),
        notes=tuple(state.notes),
    )


class _State:
    def __init__(self, script: Script, head: Head, base: Base) -> None:
        self._script = script
        self._head = head
        self.env = dict(base.env)
        self.user, self.cwd = base.user, base.cwd
        self.user_line: int | None = None
        self.entrypoint: tuple[str, ...] = ()
        self.cmd = base.command
        self.args: dict[str, str] = {}
        self.steps: list[BuildStep] = []
        self.notes: list[str] = []

    def take(self, item: Instruction) -> None:
        """Take the next instruction."""
        known: Mapping[str, Any] = {
            "RUN": self._run,
            "COPY": self._copy,
            "ENV": self._env,
            "ARG": self._arg,
            "WORKDIR": self._workdir,
            "USER": self._user,
            "CMD": self._command,
            "ENTRYPOINT": self._command,
        }
        if item.keyword != "COPY":
            _only_flags(self._script, item, set())
        known[item.keyword](item)

    @property
    def _names(self) -> Mapping[str, str]:
        return {"PATH": PATH} | self.args | self.env

    def _run(self, item: Instruction) -> None:
        self.steps.append(
            Run(
                line=item.line,
                command=item.words or item.value,
                env=self.args | self.env,
                user=self.user,
                cwd=self.cwd,
            )
        )

    def _copy(self, item: Instruction) -> None:
        _only_flags(self._script, item, {"chown", "chmod"})
        words = list(item.words or _split(self._script, item, self._names))
        if len(words) < 2:
            raise self._wrong(item, "COPY wants one or more sources and a target")
        target = posixpath.join(self.cwd, words[-1])
        if words[-1] in (".", "..") or words[-1].endswith(("/.", "/..")):
            target += "/"
        is_folder = target.endswith("/") or len(words) > 2
        target = posixpath.normpath(target).replace("//", "/")
        owner = self._fill(item, item.flags.get("chown", ""))
        mode = item.flags.get("chmod")
        if owner and _OWNER.fullmatch(owner) is None:
            raise self._wrong(item, f"--chown is {owner!r}; USER or USER:GROUP is wanted")
        if mode is not None and _MODE.fullmatch(mode) is None:
            raise self._wrong(item, f"--chmod is {mode!r}; octal digits such as 0755 are wanted")
        self.steps.append(
            Copy(
                line=item.line,
                sources=tuple(words[:-1]),
                target=target if not is_folder or target == "/" else f"{target}/",
                owner=owner,
                mode=int(mode, 8) if mode is not None else None,
            )
        )

    def _env(self, item: Instruction) -> None:
        first = item.value.split(None, 1)
        if "=" not in first[0]:
            if len(first) != 2:
                raise self._wrong(item, "ENV wants NAME=VALUE")
            value = _joined(self._script, item, first[1], self._names)
            self.env |= {self._name(item, first[0]): value}
            return
        found = {}
        for word in _split(self._script, item, self._names):
            name, equals, value = word.partition("=")
            if not equals:
                raise self._wrong(item, f"ENV has {word[:60]!r}; NAME=VALUE is wanted")
            found[self._name(item, name)] = value
        self.env |= found

    def _name(self, item: Instruction, name: str) -> str:
        if _NAME.fullmatch(name) is None:
            raise self._wrong(item, f"{name[:60]!r} is no variable's name")
        return name

    def _arg(self, item: Instruction) -> None:
        self.args |= _arg(self._script, item, self._names, self._head.args)

    def _workdir(self, item: Instruction) -> None:
        path = posixpath.normpath(posixpath.join(self.cwd, self._fill(item, item.value)))
        self.cwd = path.replace("//", "/")
        self.steps.append(MakeFolder(line=item.line, path=self.cwd))

    def _user(self, item: Instruction) -> None:
        user = self._fill(item, item.value).partition(":")[0]
        if _USER.fullmatch(user) is None:
            raise self._wrong(item, f"USER is {user[:60]!r}; a name or a uid is wanted")
        self.user, self.user_line = user, item.line

    def _command(self, item: Instruction) -> None:
        words = item.words if item.words is not None else ("/bin/sh", "-c", item.value)
        if item.keyword == "CMD":
            self.cmd = words
        else:
            self.entrypoint, self.cmd = words, ()

    def _fill(self, item: Instruction, text: str) -> str:
        return _joined(self._script, item, text, self._names)

    def _wrong(self, item: Instruction, what: str) -> InvalidRequest:
        return self._script.wrong(item.line, what)


def _arg(
    script: Script, item: Instruction, env: Mapping[str, str], before: Mapping[str, str]
) -> dict[str, str]:
    """Return the build arguments that an ARG declares; one without a value has that from before FROM."""
    found: dict[str, str] = {}
    for word in _split(script, item, env):
        name, _, value = word.partition("=")
        if _NAME.fullmatch(name) is None:
            raise script.wrong(item.line, f"{name[:60]!r} is no variable's name")
        if "=" in word:
            found[name] = value
        elif name in before:
            found[name] = before[name]
    return found


def _only_flags(script: Script, item: Instruction, known: set[str]) -> None:
    for name in item.flags:
        if name not in known:
            raise script.wrong(
                item.line,
                f"{item.keyword} --{name} is not supported",
                hint=_ONCE if name == "from" else "leave it out",
            )


def _split(script: Script, item: Instruction, env: Mapping[str, str]) -> list[str]:
    try:
        return split(item.value, env)
    except BadWordError as exc:
        raise script.wrong(item.line, f"{item.keyword}: {exc}") from exc


def _joined(script: Script, item: Instruction, text: str, env: Mapping[str, str]) -> str:
    """Return a value that is one word, its quotes taken off."""
    try:
        return " ".join(split(text, env)) if set(text) & set("\"'") else fill(text, env)
    except BadWordError as exc:
        raise script.wrong(item.line, f"{item.keyword}: {exc}") from exc
