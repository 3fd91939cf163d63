"""`torpor memory`: what agents know, to look at, correct and forget. The commands are in `memory_*.py`."""

from __future__ import annotations

import typer

from torpor.cli import memory_read, memory_store, memory_write

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="What agents know: look at it, correct it, forget it. In the daemon's keeping, or in a --file.",
)

for _command in (
    memory_read.spaces,
    memory_write.record,
    memory_write.remember,
    memory_read.recall,
    memory_read.explain,
    memory_read.why_not,
    memory_read.facts,
    memory_read.episodes,
    memory_read.timeline,
    memory_read.history,
    memory_read.diff,
    memory_read.conflicts,
    memory_write.resolve,
    memory_write.consolidate,
    memory_write.correct,
    memory_write.supersede,
    memory_write.retract,
    memory_write.restore,
    memory_write.pin,
    memory_write.expire,
    memory_write.revert,
    memory_write.erase,
    memory_read.effects,
    memory_read.verify,
    memory_store.export,
    memory_store.import_,
    memory_store.salvage,
    memory_store.embed,
    memory_store.fork,
    memory_store.switch,
    memory_store.merge,
    memory_store.bench,
):
    app.command(_command.__name__.strip("_").replace("_", "-"))(_command)
app.add_typer(memory_store.files, name="files")
