"""The QEMU command line, made from a `MachineSpec` and nothing else.

A device that is added or taken away here makes another machine: raise `host.MACHINE` with it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor.vmm.base import Disk, MachineSpec, VolumeDisk
from torpor.vmm.chains import needed
from torpor.vmm.qemu.host import Accel

AGENT_PORT = "torpor.agent0"
"""Name of the virtio-serial port that the guest agent opens."""

DISK_ID = "disk0"
DISK_DEVICE = f"/machine/peripheral/{DISK_ID}/virtio-backend"
"""What QEMU knows the root disk's own device by; `DISK_ID` is the PCI card that it is on."""

_VOLUMES_BUS = "volumes"

_INCOMING = (
    *("-S", "-global", "migration.send-configuration=off", "-incoming", "defer"),
    "-no-reboot",
)
"""The saved state is that of `xen-save-devices-state`: devices only, no configuration section, no RAM.

A process that takes over a state never loads the firmware (QEMU's `rom_reset` expects it in the RAM that comes). A
reset would run zeros for ever, so it ends the machine.
"""

_TCG_CACHE_MIB = 256
"""Translated code that one emulated machine may keep; QEMU's own default is 1 GiB on a large host."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """File descriptors and names that one start hands to QEMU; names are relative to its folder."""

    qmp_fd: int
    agent_fd: int
    console: str
    ram: str
    restored: bool = False
    """True: `ram` is a saved image, mapped so that nothing ever changes it, and the state is loaded later."""


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
        # readonly=on,rom=off: a private mapping of a file opened for reading. Without it the balloon's discard
        # punches holes into the image that other machines map.
        f"memory-backend-file,id=ram,size={spec.ram_mib}M,mem-path={wiring.ram},share=off"
        + (",readonly=on,rom=off" if wiring.restored else ""),
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
        f"virtio-blk-pci,drive={node_name(spec.disk.active)},id={DISK_ID}",
        # every machine has it from its template's boot on, so that a volume is plugged into it without a PCI hot-plug
        "-device",
        f"virtio-scsi-pci,id={_VOLUMES_BUS}",
        *_volumes(spec.volumes),
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
        *(_INCOMING if wiring.restored else ()),
    ]


def node_name(path: Path) -> str:
    """Return the name of the block node for a layer's file: the layer's id, which QEMU tells back."""
    return path.stem


def overlay_node(path: Path) -> dict[str, object]:
    """Return the QMP arguments that add an empty overlay whose backing a snapshot will set."""
    return _node(node_name(path), path, writable=True) | {"backing": None}


def volume_device(slot: int) -> str:
    """Return the id of the device in a machine's place for volumes."""
    return f"vol{slot}"


def volume_node(slot: int, path: Path) -> str:
    """Return the name of the block node for a volume's file; two volumes may share layers, so the slot is in it."""
    return f"v{slot}-{path.stem}"


def volume_chain(disk: VolumeDisk) -> dict[str, object]:
    """Return the QMP arguments that add a volume's newest node with all below it."""
    files = needed((*disk.layers, *(() if disk.active is None else (disk.active,))))
    below: dict[str, object] | None = None
    for path in files:
        node = _volume_file(disk.slot, path, writable=path == disk.active)
        below = node | {"backing": below} if path.suffix == ".qcow2" else node
    assert below is not None, "a volume has at least one layer"
    return below


def volume_overlay(slot: int, path: Path) -> dict[str, object]:
    """Return the QMP arguments that add an empty overlay of a volume; see `overlay_node`."""
    return _volume_file(slot, path, writable=True) | {"backing": None}


def volume_disk(disk: VolumeDisk) -> dict[str, object]:
    """Return the QMP arguments that plug in a volume whose nodes are there."""
    newest = disk.layers[-1] if disk.active is None else disk.active
    return {
        "driver": "scsi-hd",
        "bus": f"{_VOLUMES_BUS}.0",
        "scsi-id": disk.slot,
        "lun": 0,
        "drive": volume_node(disk.slot, newest),
        "id": volume_device(disk.slot),
        "serial": disk.serial,
        "device_id": disk.serial,
    }


def _volume_file(slot: int, path: Path, *, writable: bool) -> dict[str, object]:
    node = _node(volume_node(slot, path), path, writable=writable)
    file = node["file"]
    assert isinstance(file, dict)
    file["locking"] = (
        "on"  # two writers of one file are refused by the kernel, whatever went wrong above
    )
    return node


def _volumes(disks: Sequence[VolumeDisk]) -> list[str]:
    options: list[str] = []
    for disk in disks:
        options += ["-blockdev", json.dumps(volume_chain(disk))]
        options += ["-device", json.dumps(volume_disk(disk))]
    return options


def _blockdevs(disk: Disk) -> list[str]:
    """Return one node a layer, each with an explicit backing: no file name inside an image is followed."""
    options: list[str] = []
    below: str | None = None
    files = needed((*disk.layers, disk.active))
    for number, path in enumerate(files):
        top = number == len(files) - 1
        name = node_name(path) if top or path.suffix == ".qcow2" else f"template{number}"
        node = _node(name, path, writable=top)
        if path.suffix == ".qcow2":
            node["backing"] = below
        options += ["-blockdev", json.dumps(node)]
        below = name
    return options


def _node(name: str, path: Path, *, writable: bool) -> dict[str, object]:
    return {
        "driver": "qcow2" if path.suffix == ".qcow2" else "raw",
        "node-name": name,
        "read-only": not writable,
        "discard": "unmap",
        "detect-zeroes": "unmap" if writable else "off",
        "file": {
            "driver": "file",
            "filename": str(path),
            "read-only": not writable,
            # an overlay that became a layer is opened anew, for reading only: then it may be sealed
            "auto-read-only": True,
            "discard": "unmap",
        },
    }


def _network(network: str) -> list[str]:
    """Return the one network device that every machine has.

    With `none` its other end forwards nothing: neither the host nor anything beyond it can be reached. The
    device is there all the same, so that a machine can be restored from a template's snapshot with or without
    a network.
    """
    restrict = ",restrict=on" if network == "none" else ""
    return ["-netdev", f"user,id=net{restrict}", "-device", "virtio-net-pci,netdev=net"]
