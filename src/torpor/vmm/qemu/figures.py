"""What a QEMU counts of its disks, summed up."""

from __future__ import annotations

from torpor.model_usage import DeviceFigures

_COUNT_MOST = 1 << 62


def figures_of(answer: object) -> DeviceFigures:
    """Return the sums of what `query-blockstats` answered; nothing in it is believed."""
    found = [
        device["stats"]
        for device in (answer if isinstance(answer, list) else [])
        if isinstance(device, dict) and device.get("qdev") and isinstance(device.get("stats"), dict)
    ]

    def total(*names: str) -> int:
        counts = [stats.get(name) for stats in found for name in names]
        return sum(c for c in counts if isinstance(c, int) and 0 <= c < _COUNT_MOST)

    return DeviceFigures(
        disk_read_bytes=total("rd_bytes"),
        disk_written_bytes=total("wr_bytes"),
        disk_reads=total("rd_operations"),
        disk_writes=total("wr_operations"),
        disk_failures=total(
            "failed_rd_operations", "failed_wr_operations", "failed_flush_operations"
        ),
        disk_throttled=None,
        network_received_bytes=None,
        network_sent_bytes=None,
        network_received_packets=None,
        network_sent_packets=None,
        network_failures=None,
        network_throttled=None,
    )
