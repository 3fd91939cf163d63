"""What calls of the SDK return besides the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torpor.errors import CommandFailed
from torpor.model import ExecId, ExecInfo

Progress = Callable[[int, int | None], object]
"""Called with the bytes done and, where it is known, the bytes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a command ended, and what it wrote."""

    exec_id: ExecId
    exit_code: int
    """0 to 255; 128 + n when signal n ended it."""
    stdout: str
    """As text: bytes that are not UTF-8 are replaced, and a mark stands where output was left out."""
    stderr: str
    duration_ms: int
    signal: int | None = None
    oom_killed: bool = False
    stdout_truncated: bool = False
    """The command wrote more than `output_limit_bytes`; the whole is in `stdout_path` in the guest."""
    stderr_truncated: bool = False
    stdout_path: str = ""
    stderr_path: str = ""
    stdout_raw: bytes = field(default=b"", repr=False)
    """The exact bytes, up to the limit."""
    stderr_raw: bytes = field(default=b"", repr=False)

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    def check(self) -> ExecResult:
        """Return this result if the exit code is 0.

        Raises:
            CommandFailed: it is not; facts have exit_code, stdout, stderr and exec_id.
        """
        if self.exit_code == 0:
            return self
        tail = self.stderr.strip()[-500:] or self.stdout.strip()[-500:]
        raise CommandFailed(
            f"the command ended with status {self.exit_code}{f': {tail}' if tail else ''}",
            exit_code=self.exit_code,
            signal=self.signal,
            stdout=self.stdout,
            stderr=self.stderr,
            exec_id=self.exec_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What an upload or download moved."""

    files: int
    """Files, folders and links."""
    size_bytes: int
    """Bytes of content."""
    skipped: tuple[str, ...] = ()
    """Links left out because they lead outside; only with `skip_outside_links`."""


def exec_result(info: ExecInfo, stdout: bytes, stderr: bytes) -> ExecResult:
    """Return the result of a command that ended as `info` says, with the output that was kept."""
    assert info.exit_code is not None
    return ExecResult(
        exec_id=info.exec_id,
        exit_code=info.exit_code,
        stdout=output_text(stdout, info.stdout_bytes, info.stdout_path),
        stderr=output_text(stderr, info.stderr_bytes, info.stderr_path),
        duration_ms=info.duration_ms or 0,
        signal=info.signal,
        oom_killed=info.oom_killed,
        stdout_truncated=info.stdout_bytes > len(stdout),
        stderr_truncated=info.stderr_bytes > len(stderr),
        stdout_path=info.stdout_path,
        stderr_path=info.stderr_path,
        stdout_raw=stdout,
        stderr_raw=stderr,
    )


def output_text(kept: bytes, total_bytes: int, path: str) -> str:
    """Return output as text, with a mark at its end if some was left out."""
    text = kept.decode("utf-8", "replace")
    if total_bytes <= len(kept):
        return text
    whole = f"; the whole is in {path}" if path else ""
    return f"{text}\n[torpor: output truncated, {len(kept)} of {total_bytes} bytes shown{whole}]\n"
