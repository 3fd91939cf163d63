"""The machine's clock in a state file of Firecracker's: it stood still while the machine did.

Firecracker saves KVM's clock of the machine together with the host's time, and KVM then moves the machine's clock on by
what has passed on the host meanwhile: a machine that slept for a week wakes with every timer and watchdog in it run
out at once. Without the host's time beside it the clock goes on from where it stood. The guest's date is set by its agent.
"""

from __future__ import annotations

import struct
from typing import Final

_DATA: Final = struct.Struct("<QIIQQ16x")
"""The kernel's `struct kvm_clock_data`: clock, flags, padding, time of day, counter, and padding."""
_FLAGS_AT: Final = 8
_REALTIME: Final = 4
_HOST_TSC: Final = 8
_SUM_BYTES: Final = 8
_POLYNOMIAL: Final = 0x95AC9329AC4BC9B5
"""Of the CRC that ends the file, bits reversed."""


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_TABLE: Final = _table()


def crc(data: bytes) -> int:
    """Return the sum that a state file with these bytes ends with."""
    found = 0
    for byte in data:
        found = _TABLE[(found ^ byte) & 0xFF] ^ (found >> 8)
    return found


def kept_still(state: bytes, since_ns: int, until_ns: int) -> bytes:
    """Return a state that was saved between these times of day, its clock without the time of day.

    What is not just as is known here, for example of another version of Firecracker, is returned as it is.
    """
    body, said = state[:-_SUM_BYTES], state[-_SUM_BYTES:]
    found = []
    flags = struct.pack("<II", _REALTIME | _HOST_TSC, 0)
    at = body.find(flags)
    while at >= 0:
        begin = at - _FLAGS_AT
        if begin >= 0 and begin + _DATA.size <= len(body):
            realtime = _DATA.unpack_from(body, begin)[3]
            if since_ns <= realtime <= until_ns:
                found.append(at)
        at = body.find(flags, at + 1)
    if len(found) != 1 or crc(body).to_bytes(_SUM_BYTES, "little") != said:
        return state
    (at,) = found
    still = body[:at] + bytes(4) + body[at + 4 :]
    return still + crc(still).to_bytes(_SUM_BYTES, "little")
