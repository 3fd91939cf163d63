"""The initial root file system: busybox, the virtio modules and a script that mounts the disk.

Debian's cloud kernel has the virtio disk and network drivers as modules; nothing else is needed to reach
the root file system, so this stands in for initramfs-tools: 4 MB that unpack in no time.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterable
from pathlib import Path

from torpor.errors import BuildFailed, HostNotReady
from torpor.templates import cpio

MODULES = (
    "virtio_pci",
    "virtio_blk",
    "ext4",
    "virtio_scsi",
    "sd_mod",
    "virtio_net",
    "virtio_console",
    "virtio-rng",
    "virtio_balloon",
    "vmgenid",
    "virtio_mmio",
    "vmw_vsock_virtio_transport",
)
"""Wanted in the guest before its root is mounted; what the kernel has built in is left out.

The last two are for Firecracker, which has no PCI bus and no serial port for the agent.
"""

INIT = Path(__file__).parent / "image" / "init"

_BUSYBOX_FIX = "sudo apt-get install busybox-static"


def build(modules: Path, busybox: Path) -> bytes:
    """Return an initrd for the kernel whose modules are in `modules` (`…/lib/modules/VERSION`).

    It is not compressed: the emulator is slower at unpacking than the host is at reading.

    Raises:
        HostNotReady: `busybox` is not a static program.
        BuildFailed: a module is missing.
    """
    program = _static(busybox)
    files = order(modules / "modules.dep", modules / "modules.builtin", MODULES)
    entries = [cpio.folder(name) for name in ("bin", "dev", "lib", "newroot", "proc", "sys")]
    entries.append(cpio.file("bin/busybox", program, mode=0o755))
    entries.append(cpio.file("init", INIT.read_bytes(), mode=0o755))
    names = []
    for relative in files:
        name = module_name(relative)
        entries.append(cpio.file(f"lib/{name}.ko", unpacked(modules / relative)))
        names.append(name)
    entries.append(cpio.file("lib/order", "".join(f"{name}\n" for name in names).encode()))
    return cpio.archive(entries)


def order(dependencies: Path, builtin: Path, wanted: Iterable[str]) -> list[str]:
    """Return the module files to load for `wanted`, each after those it needs; built-in ones are left out.

    Raises:
        BuildFailed: one is neither a module nor built in.
    """
    inside = {module_name(line) for line in builtin.read_text().split()}
    by_name: dict[str, tuple[str, list[str]]] = {}
    for line in dependencies.read_text().splitlines():
        path, _, needs = line.partition(":")
        by_name[module_name(path)] = (path, [module_name(need) for need in needs.split()])
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in inside:
            return
        if name not in by_name:
            raise BuildFailed(f"the guest's kernel has no module {name}", step="image", module=name)
        path, needs = by_name[name]
        if path in found:
            return
        for need in needs:
            visit(need)
        found[path] = None

    for name in wanted:
        visit(module_name(name))
    return list(found)


def module_name(path: str) -> str:
    """Return the kernel's name for a module file: `a/virtio-rng.ko.xz` is `virtio_rng`."""
    return path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")


def unpacked(path: Path) -> bytes:
    """Return a module's plain bytes.

    Raises:
        BuildFailed: it is compressed in a way that is not known.
    """
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".ko":
        return data
    raise BuildFailed(f"{path.name} is compressed in a way that is not known", step="image")


def find_busybox(
    candidates: Iterable[Path] = (Path("/bin/busybox"), Path("/usr/bin/busybox")),
) -> Path:
    """Return the host's static busybox.

    Raises:
        HostNotReady: there is none.
    """
    for path in candidates:
        if path.is_file():
            _static(path)
            return path
    raise HostNotReady("busybox is not installed", hint=f"run: {_BUSYBOX_FIX}")


def _static(path: Path) -> bytes:
    """Return the program's bytes if it runs without an interpreter (no PT_INTERP in its ELF header)."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        raise HostNotReady(f"{path} is not a 64-bit program", hint=f"run: {_BUSYBOX_FIX}")
    start = int.from_bytes(data[32:40], "little")
    size, count = int.from_bytes(data[54:56], "little"), int.from_bytes(data[56:58], "little")
    for number in range(count):
        at = start + number * size
        if int.from_bytes(data[at : at + 4], "little") == 3:
            raise HostNotReady(
                f"{path} needs shared libraries; a static one is wanted",
                hint=f"run: {_BUSYBOX_FIX}",
            )
    return data
