"""Commands on tokens."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

import typer

from torpor.cli import completion
from torpor.cli.output import AsJson, age, as_dict, left, print_json, print_table
from torpor.cli.removal import remove_each
from torpor.errors import InvalidRequest

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Make, list and remove tokens.",
)

_SCOPES = ("read", "use", "admin")
_UNITS_S = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What it is for; unique in its workspace.")],
    scope: Annotated[
        str,
        typer.Option(help="`read`, `use` or `admin`.", autocompletion=completion.one_of(_SCOPES)),
    ],
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Such as 90d, 12h, 30min; default: never.")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(help="Where it sees and makes things; default: `default`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it. It cannot be shown again."""
    from torpor.sdk.tokens import Tokens

    if scope not in _SCOPES:
        raise InvalidRequest(f"--scope {scope!r} is not known", hint="--scope read|use|admin")
    made = Tokens.create(
        name, scope=scope, expires_in_seconds=seconds_of(expires), workspace=workspace
    )
    if as_json:
        print_json({"token": made.token, **as_dict(made.info)})
    else:
        print(made.token)


@app.command("ls")
def ls(as_json: AsJson = False) -> None:
    """List tokens, without the tokens themselves."""
    from torpor.sdk.tokens import Tokens

    found = Tokens.list()
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "NAME", "BEGINS", "SCOPE", "WORKSPACE", "AGE", "EXPIRES", "USED"),
        [
            (
                t.id,
                t.name,
                f"{t.prefix}…",
                t.scope,
                t.workspace,
                age(t.created_at),
                left(t.expires_at),
                "never" if t.last_used_at is None else f"{age(t.last_used_at)} ago",
            )
            for t in found
        ],
        empty="no tokens; make one: torpor token create NAME --scope use",
    )


@app.command("rm")
def rm(
    tokens: Annotated[
        list[str],
        typer.Argument(
            metavar="TOKEN…", help="Names, ids or prefixes.", autocompletion=completion.tokens
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Remove tokens; they are refused from now on."""
    remove_each({token: partial(_removed, token) for token in tokens}, as_json=as_json)


def _removed(token: str) -> None:
    from torpor.sdk.tokens import Tokens

    Tokens.delete(token)


def seconds_of(text: str | None) -> int | None:
    """Return a time such as `90d` in seconds.

    Raises:
        InvalidRequest: it is none.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9})\s*(s|m|min|h|d)", text.strip())
    if found is None:
        raise InvalidRequest(f"{text!r} is not a time", hint="such as 90d, 12h, 30min or 45s")
    return int(found[1]) * _UNITS_S[found[2]]
