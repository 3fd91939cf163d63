"""The balloon of a Firecracker: blown up as far as the guest goes along, let out whatever happens, and no guest is waited for."""

from __future__ import annotations

import asyncio

import pytest

from torpor.base.units import MIB
from torpor.errors import VmmFailed
from torpor.layers.ram import PAGE
from torpor.vmm.firecracker import balloon

_RAM = 64 * MIB


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("_LOOK_AGAIN_S", 0.001),
        ("_STANDS_STILL_S", 0.02),
        ("_BEGINS_S", 0.05),
        ("_LIMIT_S", 0.2),
    ):
        monkeypatch.setattr(balloon, name, value)


class Guest:
    """A guest that moves so many pages each time that somebody looks, and keeps some for itself."""

    def __init__(self, *, grows: int = 1000, shrinks: int = 1000, keeps: int = 4000) -> None:
        self.grows, self.shrinks = grows, shrinks
        self.most = _RAM // PAGE - keeps
        self.target = self.pages = self.largest = 0
        self.asked: list[object] = []
        self.fault: BaseException | None = None

    async def call(self, method: str, path: str, body: object = None) -> object:
        if (method, path) == ("PATCH", "/balloon"):
            assert isinstance(body, dict)
            self.asked.append(body["amount_mib"])
            self.target = body["amount_mib"] * MIB // PAGE
            return None
        assert (method, path) == ("GET", "/balloon/statistics")
        if self.fault is not None and self.largest:
            raise self.fault
        if self.pages < self.target:
            self.pages = min(self.pages + self.grows, self.target, self.most)
        else:
            self.pages = max(self.pages - self.shrinks, self.target)
        self.largest = max(self.largest, self.pages)
        return {"target_pages": self.target, "actual_pages": self.pages}


def _squeeze(guest: Guest) -> None:
    asyncio.run(balloon.squeeze(guest, _RAM))  # type: ignore[arg-type]


@pytest.mark.parametrize("keeps", [0, 4000])
def test_it_takes_all_that_the_guest_has_to_give_and_lets_it_go(keeps: int) -> None:
    guest = Guest(keeps=keeps)
    _squeeze(guest)
    assert guest.asked == [64, 0]
    assert (guest.largest, guest.pages) == (_RAM // PAGE - keeps, 0)


@pytest.mark.parametrize("guest", [Guest(grows=0), Guest(shrinks=0)])
def test_a_guest_that_does_not_take_part_is_not_waited_for(guest: Guest) -> None:
    with pytest.raises(VmmFailed, match="does not do with its balloon what it is asked to"):
        _squeeze(guest)
    assert guest.asked[-1] == 0, "it may have all its memory"


def test_one_that_takes_for_ever_is_stopped() -> None:
    guest = Guest(grows=1)
    _squeeze(guest)
    assert 0 < guest.largest < guest.most
    assert guest.pages == 0


@pytest.mark.parametrize("fault", [VmmFailed("it ended"), asyncio.CancelledError()])
def test_a_failure_leaves_the_guest_its_memory(fault: BaseException) -> None:
    guest = Guest()
    guest.fault = fault
    with pytest.raises(type(fault)):
        _squeeze(guest)
    assert guest.asked == [64, 0]


@pytest.mark.parametrize("answer", [None, {}, {"actual_pages": "many"}, [1]])
def test_nothing_of_an_answer_is_believed(answer: object) -> None:
    class Odd(Guest):
        async def call(self, method: str, path: str, body: object = None) -> object:
            return answer if method == "GET" else await super().call(method, path, body)

    with pytest.raises(VmmFailed, match="does not say how large"):
        _squeeze(Odd())
