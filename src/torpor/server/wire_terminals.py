"""The shapes of terminals in JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from torpor.model import ExecSpec
from torpor.model_terminals import SIDE_MOST, TerminalSpec
from torpor.server.query import to_bytes
from torpor.server.wire import Wire
from torpor.server.wire_exec import TIMEOUT_MAX_S

Side = Annotated[int, Field(ge=1, le=SIDE_MOST)]


class TerminalRequest(Wire):
    """What POST …/terminals takes; nothing is needed."""

    cmd: Annotated[str | None, Field(description="Run by /bin/sh -c.")] = None
    argv: Annotated[list[str] | None, Field(description="Run as it is, without a shell.")] = None
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    user: str | None = None
    columns: Side = 80
    rows: Side = 24
    term: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9._+-]{1,64}$")] = None
    timeout_seconds: Annotated[
        float | None, Field(gt=0, le=TIMEOUT_MAX_S, description="Then the whole tree is killed.")
    ] = None
    exec_id: Annotated[
        str | None,
        Field(
            description="An id of the client's choice: a repeat with the same id finds the first.",
            pattern=r"^exec_[0-9a-z]{20}$",
        ),
    ] = None

    @model_validator(mode="after")
    def _one_command(self) -> TerminalRequest:
        if self.cmd is not None and self.argv is not None:
            raise ValueError("give at most one of `cmd` and `argv`")
        if self.cmd == "" or self.argv == []:
            raise ValueError("the command is empty; leave it out for a login shell")
        return self

    def spec(self) -> ExecSpec:
        """Return the request in the guest's words."""
        for text in (
            self.cmd or "",
            *(self.argv or ()),
            *self.env,
            *self.env.values(),
            self.cwd or "",
        ):
            to_bytes(text, "the request")
        return ExecSpec(
            command=tuple(self.argv) if self.argv is not None else self.cmd or "",
            cwd=self.cwd,
            env=self.env,
            user=self.user,
            timeout_seconds=self.timeout_seconds,
            stdin=True,
            background=True,
            terminal=TerminalSpec(columns=self.columns, rows=self.rows, term=self.term),
        )


class ResizeRequest(Wire):
    """What POST …/resize takes."""

    columns: Side
    rows: Side
