"""What a machine may move in a second: what is set, and what a Firecracker is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from torpor.base.units import MIB
from torpor.errors import InvalidRequest
from torpor.vmm.base import Disk, MachineSpec
from torpor.vmm.firecracker import config
from torpor.vmm.limits import DISK, NETWORK, RateLimits


@pytest.mark.parametrize(
    ("environment", "want", "words"),
    [
        ({}, RateLimits(), "none"),
        ({DISK: "", NETWORK: ""}, RateLimits(), "none"),
        ({DISK: "50"}, RateLimits(50 * MIB), "each disk 50 MiB/s"),
        (
            {DISK: "1.5", NETWORK: "0.5"},
            RateLimits(3 * MIB // 2, MIB // 2),
            "each disk 1.5 MiB/s, network 512 KiB/s each way",
        ),
    ],
)
def test_the_environment_says(environment: Mapping[str, str], want: RateLimits, words: str) -> None:
    assert RateLimits.of(environment) == want
    assert str(want) == words


@pytest.mark.parametrize("name", [DISK, NETWORK])
@pytest.mark.parametrize("value", ["0", "0.01", "-1", "fast", "nan", "inf", "1e7"])
def test_what_is_no_limit_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is '{value}'; a number from 0.1 to 1000000"):
        RateLimits.of({name: value})


def _buckets(limits: RateLimits) -> dict[str, object]:
    """Return the buckets that a Firecracker that boots gets, by device and way."""
    spec = MachineSpec(
        vcpus=1,
        ram_mib=256,
        network="user",
        kernel=Path("/t/vmlinuz"),
        initrd=Path("/t/initrd"),
        cmdline="console=ttyS0",
        disk=Disk((), Path("/s/disk.raw")),
    )
    return _found(config.boot(spec, Path("/t/vmlinux"), limits))


def _found(told: object) -> dict[str, object]:
    return {
        f"{path} {name}": value["bandwidth"]
        for path, body in told  # type: ignore[attr-defined]
        for name, value in body.items()
        if name.endswith("rate_limiter")
    }


def test_a_firecracker_is_limited_when_it_boots_and_anew_when_it_goes_on() -> None:
    limits = RateLimits(50 * MIB, 10 * MIB)
    disk, card = f"/drives/{config.DISK_ID} rate_limiter", "/network-interfaces/eth0"
    places = [f"/drives/{config.volume_name(slot)} rate_limiter" for slot in config.SLOTS]
    want = {
        **{drive: {"size": 50 * MIB, "refill_time": 1000} for drive in (disk, *places)},
        f"{card} rx_rate_limiter": {"size": 10 * MIB, "refill_time": 1000},
        f"{card} tx_rate_limiter": {"size": 10 * MIB, "refill_time": 1000},
    }
    assert _buckets(limits) == want
    some = {key: want[key] for key in want if key not in places[1:]}
    assert _found(config.limited(limits, config.SLOTS[:1])) == some
    none = {key: {"size": 0, "refill_time": 0} for key in some}
    assert _found(config.limited(RateLimits(), config.SLOTS[:1])) == none, (
        "it may have been saved with a limit"
    )
