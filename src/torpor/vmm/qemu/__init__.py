"""QEMU: runs everywhere, with KVM where the host has it, else by emulation."""

from torpor.vmm.qemu.driver import QemuDriver

__all__ = ["QemuDriver"]
