"""Code contexts: interpreters in a sandbox that keep what code has set from one run to the next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, NewType, get_args

from torpor.model import ExecInfo

ContextId = NewType("ContextId", str)
Language = Literal["python", "bash"]
LANGUAGES: Final[tuple[Language, ...]] = get_args(Language)
ContextState = Literal["running", "ended", "lost"]
CodeStatus = Literal["ok", "error", "timeout", "died", "stopped"]
CODE_STATUSES: Final[tuple[CodeStatus, ...]] = get_args(CodeStatus)

CONTEXTS_FOLDER = "/run/torpor/contexts"
"""In the guest: a folder for each context. The programs behind them are beside it, where only root writes."""
CODE_TEMPLATE: Final = "code-interpreter"
"""The shipped template with a Python interpreter for contexts."""
OUTPUT_LIMIT_BYTES: Final = 1 << 20
"""Kept of each output of one run, unless the caller says otherwise."""
OUTPUT_LIMIT_MAX_BYTES: Final = 16 << 20
CODE_BYTES_MOST: Final = 4 << 20

_ID: Final = re.compile(r"ctx_[0-9a-z_]{1,40}")
_PROGRAM: Final = re.compile(r"-[0-9a-f]{16}/serve\.py")


def default_context(language: Language) -> ContextId:
    """Return the id of the context that is made when none is asked for."""
    return ContextId(f"ctx_default_{language}")


def context_folder(context_id: ContextId) -> str:
    """Return the folder of a context in the guest."""
    return f"{CONTEXTS_FOLDER}/{context_id}"


def contexts_folder() -> str:
    """Return the folder in the guest with a folder for each context."""
    return CONTEXTS_FOLDER


def program_folder(digest: str) -> str:
    """Return the folder in the guest of the programs with that digest, 16 hexadecimal digits."""
    return f"{CONTEXTS_FOLDER}-{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSpec:
    """A context to make."""

    language: Language = "python"
    cwd: str | None = None
    """None: the template's `default_cwd`."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Laid over the sandbox's environment."""
    user: str | None = None
    """None: the template's `default_user`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInfo:
    """What is so about one context."""

    id: ContextId
    language: Language
    state: ContextState
    """`ended`: its program is gone, with all that it knew; `lost`: the guest's agent ended meanwhile, and it too."""
    user: str
    cwd: str
    created_at: datetime
    program: str = field(default="", repr=False)
    """In the guest: the folder with the programs that serve it."""
    is_ready: bool = field(default=True, repr=False)
    """Its program has said how its start went; until then it answers nobody."""


def context_of(info: ExecInfo) -> ContextInfo | None:
    """Return the context whose program an exec is; None if it is another command."""
    command = info.command
    if not isinstance(command, tuple) or len(command) != 5 or _ID.fullmatch(info.exec_id) is None:
        return None
    program = command[2]
    if not program.startswith(CONTEXTS_FOLDER):
        return None
    if _PROGRAM.fullmatch(program.removeprefix(CONTEXTS_FOLDER)) is None:
        return None
    language = next((known for known in LANGUAGES if known == command[4]), None)
    if language is None:
        return None
    return ContextInfo(
        id=ContextId(info.exec_id),
        language=language,
        state="ended" if info.state == "exited" else info.state,
        user=info.user,
        cwd=info.cwd,
        created_at=info.started_at,
        program=program.rpartition("/")[0],
        is_ready=info.state != "running" or info.stdout_bytes > 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSpec:
    """Code to run in a context."""

    code: str = field(repr=False)
    timeout_seconds: float | None = None
    """From when it begins; then it is interrupted, and if it does not stop the interpreter is started again."""
    output_limit_bytes: int = OUTPUT_LIMIT_BYTES
    """Of each output; what is more is counted and left out."""
    interrupt_on_disconnect: bool = False
    """Interrupt the code when nobody listens any more, instead of letting it run."""


@dataclass(frozen=True, slots=True)
class CodeStarted:
    """The code's turn has come."""


@dataclass(frozen=True, slots=True)
class CodeOutput:
    """Text that the code wrote."""

    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeResult:
    """One value that the code showed, in all forms that it has."""

    data: Mapping[str, object]
    """By MIME type: text; for `image/png` and other binary forms base 64; for JSON types what it holds."""
    is_main: bool = False
    """It is the value of the code's last expression, not one that was displayed by the way."""
    omitted: Mapping[str, int] = field(default_factory=dict)
    """Forms that were too large to hand on, with their sizes in characters."""

    @property
    def text(self) -> str | None:
        """`text/plain`."""
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        """`text/html`, such as that of a DataFrame."""
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        """`text/markdown`."""
        return self._text("text/markdown")

    @property
    def latex(self) -> str | None:
        """`text/latex`."""
        return self._text("text/latex")

    @property
    def svg(self) -> str | None:
        """`image/svg+xml`."""
        return self._text("image/svg+xml")

    @property
    def png(self) -> str | None:
        """`image/png` in base 64."""
        return self._text("image/png")

    @property
    def jpeg(self) -> str | None:
        """`image/jpeg` in base 64."""
        return self._text("image/jpeg")

    @property
    def json(self) -> object:
        """`application/json`; None also when there is none."""
        return self.data.get("application/json")

    def _text(self, mime: str) -> str | None:
        found = self.data.get(mime)
        return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeError:
    """What code raised; it is data, not a failure of the run."""

    name: str
    """The class, such as `ZeroDivisionError`."""
    value: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeEnded:
    """How the code ended."""

    status: CodeStatus
    """`timeout`: interrupted at its limit; `died`: the interpreter ended; `stopped`: somebody restarted it."""
    duration_ms: int
    restarted: bool = False
    """The interpreter was started anew, just before the code or because of it: what had been set is gone."""
    exit_code: int | None = None
    """Of bash code."""
    execution_count: int | None = None
    """Of Python code: 1 for the first in an interpreter."""
    stdout_bytes: int = 0
    """All that it wrote, what was left out included."""
    stderr_bytes: int = 0


CodeEvent = CodeStarted | CodeOutput | CodeResult | CodeError | CodeEnded
