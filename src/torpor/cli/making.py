"""Machines that a command makes: it hands them over, or takes them back when it is interrupted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from torpor.errors import TorporError

if TYPE_CHECKING:
    from torpor.sdk.sandbox import AsyncSandbox

Made = list["AsyncSandbox | TorporError"]


def handed_over(work: Coroutine[None, None, Made]) -> Made:
    """Return what `work` makes. After Ctrl-C it is deleted when it is there, so that none is left whose id nobody saw.

    Another Ctrl-C does not wait for that.
    """
    from torpor.sdk.loop import loop_thread
    from torpor.sdk.temporary import CLEANUP_LIMIT_S, Temporary

    async def make() -> Made:
        async with Temporary() as temporary:
            try:
                made = await temporary.make(work)
            except asyncio.CancelledError:
                print(
                    "note: what is being made is deleted again; Ctrl-C once more leaves it",
                    file=sys.stderr,
                )
                raise
            for one in made:
                if not isinstance(one, TorporError):
                    temporary.keep(one.id)
            return made

    return loop_thread.run(make(), cleanup_limit_s=CLEANUP_LIMIT_S)


def one_handed_over(work: Coroutine[None, None, AsyncSandbox]) -> AsyncSandbox:
    """Return the one machine that `work` makes, as `handed_over`."""

    async def as_list() -> Made:
        return [await work]

    (made,) = handed_over(as_list())
    assert not isinstance(made, TorporError)
    return made
