"""Commands on quiescing: try a machine's hooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from torpor.cli.find import SandboxArg, find
from torpor.cli.output import AsJson, print_facts, print_json, print_table
from torpor.errors import InvalidRequest, QuiesceFailed

if TYPE_CHECKING:
    from torpor.model import Consistency
    from torpor.model_quiesce import OnQuiesceFailure, QuiesceReport

_FILE_MOST = 1 << 20

QuiesceFile = Annotated[
    Path | None,
    typer.Option(
        "--quiesce",
        metavar="FILE",
        help="Hooks for `application`, as YAML or JSON; see the manual.",
    ),
]
Consistent = Annotated[
    str,
    typer.Option(
        "--consistency",
        help="`filesystem` (frozen while captured), `crash` (synced), or `application`: programs hold still.",
    ),
]
OnFailure = Annotated[
    str | None,
    typer.Option(
        "--on-quiesce-failure",
        help="`refuse` (default): no snapshot if a required hook fails; `downgrade`: a lesser one.",
    ),
]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Bring a sandbox's programs to rest for a snapshot: try the hooks.",
)


@app.callback()
def group() -> None:
    """Bring a sandbox's programs to rest for a snapshot: try the hooks."""


@app.command("test")
def try_hooks(sandbox: SandboxArg, quiesce: QuiesceFile = None, as_json: AsJson = False) -> None:
    """Prepare, hold, confirm and release all hooks, without a snapshot; say what came of each, and its times.

    Fails with 92 if a snapshot would not have been `application`.
    """
    report = find(sandbox).test_quiesce(quiesce=read_quiesce(quiesce))
    if as_json:
        print_json(report)
    else:
        print_report(report)
    if not report.held:
        raise typer.Exit(QuiesceFailed.exit_code)


def read_quiesce(path: Path | None) -> dict[str, Any] | None:
    """Return what a file says about quiescing.

    Raises:
        InvalidRequest: it cannot be read, or is no YAML object; the message names the line.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_MOST + 1)
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror}") from exc
    if len(data) > _FILE_MOST:
        raise InvalidRequest(f"{path} is longer than {_FILE_MOST} bytes")
    import yaml

    try:
        found = yaml.safe_load(data)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InvalidRequest(f"{where} is no YAML: {getattr(exc, 'problem', exc)}") from exc
    if not isinstance(found, dict):
        raise InvalidRequest(f"{path} holds no object", hint="hooks: [...]")
    return found


def consistency_of(text: str) -> Consistency:
    """Return the consistency that an option names."""
    from torpor.model import Consistency

    if text not in get_args(Consistency):
        raise InvalidRequest(
            f"--consistency {text!r} is not known",
            hint="--consistency filesystem|crash|application",
        )
    return cast("Consistency", text)


def on_failure(text: str | None) -> OnQuiesceFailure | None:
    """Return the policy that an option names."""
    from torpor.model_quiesce import OnQuiesceFailure

    if text is not None and text not in get_args(OnQuiesceFailure):
        raise InvalidRequest(
            f"--on-quiesce-failure {text!r} is not known",
            hint="--on-quiesce-failure refuse|downgrade",
        )
    return cast("OnQuiesceFailure | None", text)


def print_report(report: QuiesceReport) -> None:
    """Print what came of quiescing: the verdict, each hook with its times, what else was noted."""
    facts: dict[str, object] = {"held": "yes" if report.held else f"no: {report.reason}"}
    if report.held:
        facts["confirmed"] = report.confirmed
    facts |= {f"version of {name}": found for name, found in report.versions.items()}
    if report.cursor is not None:
        facts["cursor"] = report.cursor
    if report.notes:
        facts["notes"] = "\n".join(report.notes)
    print_facts(facts)
    print_table(
        ("HOOK", "KIND", "", "STATE", "PREPARE", "HOLD", "HELD", "RELEASE", "MESSAGE"),
        [
            (
                hook.name,
                hook.kind,
                "required" if hook.required else "optional",
                hook.state,
                *map(_ms, (hook.prepare_ms, hook.hold_ms, hook.held_ms, hook.release_ms)),
                "; ".join(
                    part
                    for part in (
                        hook.message,
                        hook.release_problem and f"release: {hook.release_problem}",
                    )
                    if part
                ),
            )
            for hook in report.hooks
        ],
        empty="no hooks",
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
