"""The machine's inventory, taken by a process of its own: see `worker`. Standard library only.

Rules: nothing here writes to a disk, except the key, once. No symlink below a watched path is followed. Values that
may be secret leave as keyed digests only. Everything is bounded: time, names, bytes that are read, entries.
"""
