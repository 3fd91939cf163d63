"""What the shell offers: names, ids and labels of what is there, and words that an option takes.

Completion asks a daemon that runs and starts none; what goes wrong offers nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torpor.base.home import Home
from torpor.errors import TorporError

if TYPE_CHECKING:
    from torpor.sdk.sync_sandbox import Sandbox

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What needs no quoting in any shell and is no option; anybody may have written names and labels."""


def sandboxes(incomplete: str) -> list[str]:
    """Return the names and ids of sandboxes that begin with `incomplete`."""
    return _offer(incomplete, [word for found in _sandboxes() for word in _words(found)])


def snapshots(incomplete: str) -> list[str]:
    """Return the ids of snapshots, and each SANDBOX@LABEL, that begin with `incomplete`."""
    return _offer(incomplete, _snapshot_words())


def sources(incomplete: str) -> list[str]:
    """Return what `sandboxes` and `snapshots` return."""
    words = [word for found in _sandboxes() for word in _words(found)]
    return _offer(incomplete, [*words, *_snapshot_words()])


def volumes(incomplete: str) -> list[str]:
    """Return the names of volumes that begin with `incomplete`."""
    from torpor.sdk.sync_volumes import Volume

    return _named(incomplete, lambda: [found.name for found in Volume.list()])


def databases(incomplete: str) -> list[str]:
    """Return the names of databases that begin with `incomplete`."""
    from torpor.sdk.sync_databases import Database

    return _named(incomplete, lambda: [found.info.name for found in Database.list()])


def templates(incomplete: str) -> list[str]:
    """Return the names of built templates that begin with `incomplete`."""
    from torpor.sdk.sync_templates import Templates

    return _named(incomplete, lambda: [found.name for found in Templates.list()])


def recipes(incomplete: str) -> list[str]:
    """Return what `templates` returns, and the recipes that come with Torpor."""
    from torpor.templates.recipe import shipped_names

    return list(dict.fromkeys([*templates(incomplete), *_offer(incomplete, [*shipped_names()])]))


def tokens(incomplete: str) -> list[str]:
    """Return the names of tokens that begin with `incomplete`."""
    from torpor.sdk.tokens import Tokens

    return _named(incomplete, lambda: [found.name for found in Tokens.list()])


def contexts(ctx: Any, incomplete: str) -> list[str]:
    """Return the ids of the code contexts of the sandbox that was typed before; one that does not run is not woken."""
    from torpor.cli.find import find

    def ids() -> list[str]:
        # behind an option that lacks its value, words are no arguments yet
        typed = ctx.params.get("sandbox") or next(iter(ctx.args), "")
        sandbox = find(str(typed))
        if sandbox.refresh().state != "running":
            return []
        return [found.id for found in sandbox.contexts.list()]

    return _named(incomplete, ids)


def one_of(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what offers those of `words` that begin with what was typed."""
    offered = [*words]

    def offer(incomplete: str) -> list[str]:
        return _offer(incomplete, offered)

    return offer


def _named(incomplete: str, names: Callable[[], list[str]]) -> list[str]:
    with contextlib.suppress(TorporError, OSError):
        if _daemon_there():
            return _offer(incomplete, names())
    return []


def _offer(incomplete: str, words: list[str]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def _words(found: Sandbox) -> list[str]:
    name = found.info.metadata.get("name")
    return [name, found.id] if name and _PLAIN.fullmatch(name) else [found.id]


def _sandboxes() -> list[Sandbox]:
    from torpor.sdk.sync_sandbox import Sandbox

    with contextlib.suppress(TorporError, OSError):
        if _daemon_there():
            return list(Sandbox.list(page_size=1000))
    return []


def _snapshot_words() -> list[str]:
    from torpor.sdk.sync_snapshots import Snapshot

    names = {found.id: _words(found)[0] for found in _sandboxes()}
    words: list[str] = []
    with contextlib.suppress(TorporError, OSError):
        if _daemon_there():
            for found in Snapshot.list():
                if found.sandbox_id and _PLAIN.fullmatch(found.label or ""):
                    words.append(f"{names.get(found.sandbox_id, found.sandbox_id)}@{found.label}")
                words.append(found.id)
    return words


def _daemon_there() -> bool:
    from torpor.sdk.daemon import answers

    return bool(os.environ.get("TORPOR_URL")) or answers(Home.default())
