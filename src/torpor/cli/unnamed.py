"""A group of commands whose name alone means one of them: `torpor snapshot SANDBOX`."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperGroup
from typing_extensions import override


class UnlessNamed(TyperGroup):
    """What does not begin with a command's name is for the command `unnamed`; the group's help has its options."""

    unnamed: ClassVar[str]
    shown_as: ClassVar[str]
    """How it is typed, for the help."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [self.unnamed, *args]
        return super().parse_args(ctx, args)

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        own = self.commands[self.unnamed].get_params(ctx)
        records = [found for param in own if (found := param.get_help_record(ctx))]
        with formatter.section(f"Options of `{self.shown_as}`"):
            formatter.write_dl(records)

    @override
    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        first = self.commands[self.unnamed].params[0]
        return [*super().shell_complete(ctx, incomplete), *first.shell_complete(ctx, incomplete)]
