"""Whether a snapshot's RAM can go on here. RAM belongs to its driver, its version and its CPU."""

from __future__ import annotations

from torpor.errors import HostNotReady, InvalidRequest, SnapshotUnusable
from torpor.model import SandboxId, SnapshotInfo
from torpor.vmm.base import HostSupport


def misfit(info: SnapshotInfo, host: HostSupport) -> str | None:
    """Return why a snapshot's RAM cannot go on on this host; None when it can."""
    for what, had, has in (
        ("driver", info.driver, host.driver),
        ("driver version", info.driver_version, host.version),
        ("accelerator", info.accel, host.accel),
        ("CPU", info.cpu, host.cpu),
        ("machine", f"version {info.machine}", f"version {host.machine}"),
    ):
        if had != has:
            return f"its {what} was {had}; this host has {has}"
    return None


def check_fits(info: SnapshotInfo, host: HostSupport, sandbox_id: SandboxId | None = None) -> None:
    """Raise `SnapshotUnusable` unless a snapshot's RAM can go on on this host: in that sandbox, or in a new one."""
    why = misfit(info, host)
    if why is not None:
        raise SnapshotUnusable(
            f"the RAM of snapshot {info.id} cannot go on here: {why}",
            hint="its disk can be started cold: restore it with allow_cold (torpor restore --allow-cold)"
            if sandbox_id is None
            else f"its disk can be started cold: torpor rollback {sandbox_id} {info.id} --cold",
            snapshot_id=info.id,
        )


def check_network(network: str, host: HostSupport) -> None:
    """Raise `HostNotReady` unless a machine can have that network on this host."""
    if network not in host.networks:
        raise HostNotReady(
            f"machines of the driver {host.driver} cannot have network={network!r} here",
            hint=f"give network={' or '.join(sorted(host.networks))}; torpor doctor says why",
        )


def check_vcpus(vcpus: int, host: HostSupport) -> None:
    """Raise `InvalidRequest` unless a machine can have so many vCPUs with this host's driver."""
    most = host.vcpus_most
    if most is not None and vcpus > most:
        raise InvalidRequest(
            f"vcpus is {vcpus}; machines of the driver {host.driver} have at most {most}",
            hint=f"make one with {most} or fewer, or with another driver (TORPOR_DRIVER)",
        )
