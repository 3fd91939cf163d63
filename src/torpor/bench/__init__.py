"""`torpor bench`: Torpor beside the bare floor, in one run on one machine.

The floor is the same QEMU or Firecracker with the same files, started by hand: no daemon, no engine, no confinement. Both are
measured in turns, so that a machine that grows busy slows both.
"""
