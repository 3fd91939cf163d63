"""The test rig: an emulated host with a working /dev/kvm, for tests of machines that need one.

QEMU's emulator implements AMD's SVM, so in a host that it emulates kvm-amd loads and runs ordinary guests.
`python -m tests.rig` builds that host, boots it and runs commands in it: see docs/decisions/0019-a-rig-for-kvm.md.
"""
