"""The QEMU command line, made from a `MachineSpec` and nothing else."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor.vmm.base import Disk, MachineSpec
from torpor.vmm.qemu.host import Accel

AGENT_PORT = "torpor.agent0"
"""Name of the virtio-serial port that the guest agent opens."""

_TCG_CACHE_MIB = 256
"""Translated code that one emulated machine may keep; QEMU's own default is 1 GiB on a large host."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """File descriptors and names that one start hands to QEMU; names are relative to its folder."""

    qmp_fd: int
    agent_fd: int
    console: str
    ram: str


def build(binary: Path, accel: Accel, name: str, spec: MachineSpec, wiring: Wiring) -> list[str]:
    """Return the argv that starts `spec` with its vCPUs running."""
    return [
        str(binary),
        "-name",
        f"{name},debug-threads=on",
        "-M",
        "q35,memory-backend=ram,suppress-vmdesc=on,vmport=off,usb=off,sata=off,smbus=off,graphics=off",
        "-accel",
        "kvm" if accel == "kvm" else f"tcg,tb-size={_TCG_CACHE_MIB}",
        "-cpu",
        "host" if accel == "kvm" else "max",
        "-smp",
        str(spec.vcpus),
        "-m",
        str(spec.ram_mib),
        "-object",
        f"memory-backend-file,id=ram,size={spec.ram_mib}M,mem-path={wiring.ram},share=off",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        # obsolete calls, new programs and other priorities are refused to a VMM that was taken over
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        # append: the daemon may cut the file while QEMU writes it
        "-chardev",
        f"file,id=console,path={wiring.console},append=on",
        "-serial",
        "chardev:console",
        "-device",
        "virtio-serial-pci",
        "-chardev",
        f"socket,id=agent,fd={wiring.agent_fd},server=on,wait=off",
        "-device",
        f"virtserialport,chardev=agent,name={AGENT_PORT}",
        *_blockdevs(spec.disk),
        "-device",
        "virtio-blk-pci,drive=top",
        "-device",
        "virtio-rng-pci",
        *_network(spec.network),
        "-device",
        "virtio-balloon-pci,free-page-reporting=on",
        "-device",
        f"vmgenid,guid={uuid.uuid4()}",
        "-chardev",
        f"socket,id=qmp,fd={wiring.qmp_fd},server=on,wait=off",
        "-mon",
        "chardev=qmp,mode=control",
        "-kernel",
        str(spec.kernel),
        "-initrd",
        str(spec.initrd),
        "-append",
        spec.cmdline,
    ]


def _blockdevs(disk: Disk) -> list[str]:
    """Return one node a layer, each with an explicit backing: no file name inside an image is followed."""
    options: list[str] = []
    below: str | None = None
    files: Sequence[Path] = (*disk.layers, disk.active)
    for number, path in enumerate(files):
        top = number == len(files) - 1
        node = "top" if top else f"layer{number}"
        qcow2 = path.suffix == ".qcow2"
        blockdev: dict[str, object] = {
            "driver": "qcow2" if qcow2 else "raw",
            "node-name": node,
            "read-only": not top,
            "discard": "unmap",
            "detect-zeroes": "unmap" if top else "off",
            "file": {
                "driver": "file",
                "filename": str(path),
                "read-only": not top,
                "discard": "unmap",
            },
        }
        if qcow2:
            blockdev["backing"] = below
        options += ["-blockdev", json.dumps(blockdev)]
        below = node
    return options


def _network(network: str) -> list[str]:
    if network == "none":
        return []
    return ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"]
