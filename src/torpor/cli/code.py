"""`torpor run` and `torpor context`: code in interpreters that keep what it has set."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torpor.base.units import format_bytes
from torpor.cli import completion
from torpor.cli.find import SandboxArg, find
from torpor.cli.output import AsJson, age, as_dict, pairs, print_json, print_table, visible
from torpor.errors import InvalidRequest, NotFound
from torpor.model_contexts import (
    CODE_BYTES_MOST,
    LANGUAGES,
    CodeEnded,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeResult,
    Language,
)

if TYPE_CHECKING:
    from torpor.sdk.sync_contexts import Context

_SUFFIXES: dict[str, Language] = {".py": "python", ".sh": "bash", ".bash": "bash"}
_ENDINGS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "text/html": "html",
    "application/pdf": "pdf",
}
"""Forms of a result that are kept in files, and how their names end."""

LanguageOption = Annotated[
    str | None,
    typer.Option(
        "-l",
        "--language",
        metavar="LANGUAGE",
        help=f"{' or '.join(LANGUAGES)}.",
        autocompletion=completion.one_of(LANGUAGES),
    ),
]
ContextArg = Annotated[
    str,
    typer.Argument(
        metavar="CONTEXT",
        help="As `torpor context ls` says.",
        autocompletion=completion.contexts,
    ),
]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Code contexts: interpreters that keep what code has set.",
)


def run(
    sandbox: SandboxArg,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="Code of this computer; `-`: stdin.")
    ] = None,
    code: Annotated[str | None, typer.Option("-c", "--code", help="The code itself.")] = None,
    language: LanguageOption = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="CONTEXT",
            help="Not the default one.",
            autocompletion=completion.contexts,
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds until it is interrupted.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FOLDER", help="Keep plots and tables in files there."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run code in a sandbox, in an interpreter that keeps what it sets for the next run.

    Plots are kept with --save. The exit code is 1 when Python code raises, bash code's own else. Ctrl-C interrupts it.
    """
    text, guessed = _code(file, code)
    events = find(sandbox).run_code_stream(
        text,
        language=_language(language) or guessed,
        context=context,
        timeout_seconds=timeout,
        interrupt_on_disconnect=True,
    )
    if as_json:
        raise typer.Exit(_print_run(events))
    raise typer.Exit(_follow(events, save))


def _code(file: str | None, code: str | None) -> tuple[str, Language]:
    """Return the code and its language."""
    if (file is None) == (code is None):
        raise InvalidRequest(
            "give a file or -c CODE, and not both", hint="torpor run SANDBOX -c 'print(1)'"
        )
    if code is not None:
        return code, "python"
    assert file is not None
    try:
        if file == "-":
            data = sys.stdin.buffer.read(CODE_BYTES_MOST + 1)
        else:
            with Path(file).open("rb") as source:
                data = source.read(CODE_BYTES_MOST + 1)
        text = data.decode("utf-8")
    except FileNotFoundError as exc:
        raise NotFound(
            f"there is no file {file} here", hint="-c CODE gives the code itself"
        ) from exc
    except OSError as exc:
        raise InvalidRequest(f"{file} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{file} is not UTF-8 text: {exc.reason}") from exc
    if len(data) > CODE_BYTES_MOST:
        raise InvalidRequest(f"{file} is over {format_bytes(CODE_BYTES_MOST)}")
    return text, _SUFFIXES.get(Path(file).suffix, "python")


def _language(text: str | None) -> Language | None:
    if text is not None and text not in LANGUAGES:
        raise InvalidRequest(f"{text!r} is no language of contexts", hint=" or ".join(LANGUAGES))
    return text


def _follow(events: Iterator[CodeEvent], save: Path | None) -> int:
    """Show what comes of code and return the exit code."""
    kept = 0
    for event in events:
        if isinstance(event, CodeOutput):
            target = sys.stdout if event.stream == "stdout" else sys.stderr
            target.buffer.write(event.text.encode("utf-8", "surrogatepass"))
            target.buffer.flush()
        elif isinstance(event, CodeResult):
            if event.text is not None:
                print(visible(event.text, keep_lines=True), flush=True)
            kept = _keep(event, save, kept)
        elif isinstance(event, CodeError):
            words = event.traceback or f"{event.name}: {event.value}"
            print(visible(words, keep_lines=True), file=sys.stderr)
        elif isinstance(event, CodeEnded):
            if event.restarted:
                print("note: the interpreter was started anew", file=sys.stderr)
            return _exit_code(event)
    return 1


def _keep(result: CodeResult, save: Path | None, kept: int) -> int:
    """Write the forms of a result that are no plain text into files; return how many there are now."""
    for mime, ending in _ENDINGS.items():
        value = result.data.get(mime)
        if not isinstance(value, str) or (mime == "text/html" and save is None):
            continue
        is_text = mime in ("image/svg+xml", "text/html")
        try:
            data = value.encode("utf-8", "replace") if is_text else base64.b64decode(value)
        except (binascii.Error, ValueError):
            print(f"note: a result says it is {mime} and is not", file=sys.stderr)
            continue
        kept += 1
        if save is None:
            print(
                f"note: {mime}, {format_bytes(len(data))}; --save FOLDER keeps it", file=sys.stderr
            )
            continue
        target = save / f"{kept:03}.{ending}"
        try:
            save.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as exc:
            raise InvalidRequest(f"cannot write {target}: {exc.strerror}") from exc
        print(f"note: {target}", file=sys.stderr)
    for mime, size in result.omitted.items():
        print(f"note: {mime}, {format_bytes(size)}, was too large", file=sys.stderr)
    return kept


def _print_run(events: Iterator[CodeEvent]) -> int:
    results: list[CodeResult] = []
    texts = {"stdout": "", "stderr": ""}
    error: CodeError | None = None
    for event in events:
        if isinstance(event, CodeOutput):
            texts[event.stream] += event.text
        elif isinstance(event, CodeResult):
            results.append(event)
        elif isinstance(event, CodeError):
            error = event
        elif isinstance(event, CodeEnded):
            print_json({"ended": event, **texts, "results": results, "error": error})
            return _exit_code(event)
    return 1


def _exit_code(ended: CodeEnded) -> int:
    if ended.exit_code is not None:
        return ended.exit_code
    return 0 if ended.status == "ok" else 1


@app.command("ls")
def ls(sandbox: SandboxArg, as_json: AsJson = False) -> None:
    """List a sandbox's code contexts."""
    found = [context.info for context in find(sandbox).contexts.list()]
    if as_json:
        print_json([_plain(info) for info in found])
        return
    print_table(
        ("CONTEXT", "LANGUAGE", "STATE", "USER", "AGE", "FOLDER"),
        [(c.id, c.language, c.state, c.user, age(c.created_at), c.cwd) for c in found],
        empty="there are no code contexts",
    )


@app.command("create")
def create(
    sandbox: SandboxArg,
    language: LanguageOption = None,
    cwd: Annotated[str | None, typer.Option("-w", "--cwd", help="Where its code starts.")] = None,
    env: Annotated[
        list[str] | None, typer.Option("-e", "--env", metavar="KEY=VALUE", help="Its environment.")
    ] = None,
    user: Annotated[str | None, typer.Option("-u", "--user", help="Name or uid.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a code context and print its id."""
    made = find(sandbox).contexts.create(
        _language(language) or "python", cwd=cwd, env=pairs(env or [], "--env"), user=user
    )
    print_json(_plain(made.info)) if as_json else print(made.id)


@app.command("interrupt")
def interrupt(sandbox: SandboxArg, context: ContextArg) -> None:
    """Interrupt what a context runs, as Ctrl-C would."""
    _get(sandbox, context).interrupt()


@app.command("restart")
def restart(sandbox: SandboxArg, context: ContextArg) -> None:
    """Start a context's interpreter anew: what had been set is gone."""
    _get(sandbox, context).restart()


@app.command("rm")
def rm(sandbox: SandboxArg, context: ContextArg) -> None:
    """End a context and all that runs in it."""
    _get(sandbox, context).delete()


def _get(sandbox: str, context: str) -> Context:
    return find(sandbox).contexts.get(context)


def _plain(info: object) -> dict[str, object]:
    return {name: value for name, value in as_dict(info).items() if name != "program"}
