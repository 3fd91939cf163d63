"""What makes a host ready for more than QEMU: a pinned Firecracker, and a file system that can share blocks."""
