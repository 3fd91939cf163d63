"""Machines run by Firecracker, on hosts with KVM."""

from torpor.vmm.firecracker.driver import FirecrackerDriver

__all__ = ["FirecrackerDriver"]
