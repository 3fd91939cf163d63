"""The balloon: memory that the guest hands over is given back to the host, and is zeros when the guest has it again.

A guest that has booted leaves much behind in pages that it freed, and a first snapshot would keep all of it. Firecracker does
not say when the guest has done what was asked; it is asked again and again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from torpor.base.aio import finish
from torpor.base.units import MIB
from torpor.errors import VmmFailed
from torpor.vmm.firecracker.api import Api

DEVICE: dict[str, object] = {
    "amount_mib": 0,
    # a program of the guest that needs memory meanwhile gets it out of the balloon
    "deflate_on_oom": True,
    # without statistics the balloon's size is not told; nobody needs what the guest would say each 18 hours
    "stats_polling_interval_s": 65535,
}

_LOOK_AGAIN_S = 0.1
_STANDS_STILL_S = 1.0
"""A guest that finds no free page tries again after 0.2 s."""
_BEGINS_S = 15.0
_LIMIT_S = 120.0


async def squeeze(api: Api, ram_bytes: int) -> None:
    """Take all memory that the guest can do without, and give it back.

    Raises:
        VmmFailed: the guest has no balloon, or is too slow.
    """
    try:
        await _resize(api, ram_bytes // MIB)
        await _until(api, lambda pages: pages > 0, within_s=_BEGINS_S)
        await _until_still(api)
    finally:
        await finish(_resize(api, 0), within_s=30.0)
    await _until(api, lambda pages: pages == 0, within_s=_LIMIT_S)


async def _resize(api: Api, amount_mib: int) -> None:
    await api.call("PATCH", "/balloon", {"amount_mib": amount_mib})


async def _until(api: Api, is_so: Callable[[int], bool], *, within_s: float) -> None:
    """Return when the size of the balloon, in pages, is so."""
    end = time.monotonic() + within_s
    while not is_so(pages := await _pages(api)):
        if time.monotonic() > end:
            raise VmmFailed(
                f"the guest does not do with its balloon what it is asked to: {pages} pages are in it"
            )
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _until_still(api: Api) -> None:
    """Return when the balloon has not grown for a while; the guest has no more to give then."""
    end = time.monotonic() + _LIMIT_S
    most, grown = 0, time.monotonic()
    while (now := time.monotonic()) - grown < _STANDS_STILL_S and now < end:
        pages = await _pages(api)
        if pages > most:
            most, grown = pages, now
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _pages(api: Api) -> int:
    told = await api.call("GET", "/balloon/statistics")
    pages = told.get("actual_pages") if isinstance(told, dict) else None
    if not isinstance(pages, int):
        raise VmmFailed("Firecracker does not say how large the guest's balloon is")
    return pages
