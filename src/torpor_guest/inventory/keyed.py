"""Digests under a key that never leaves the machine.

Whoever has an inventory cannot look a value up in it, however short the value is, and cannot see that two places
hold the same one. The key lies on the machine's disk, so that it is the same before and after a snapshot, and in
every machine that goes on from one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os

_KEY_BYTES = 32
_DIGEST_BYTES = 16


class Keyed:
    """Makes digests of 32 hex digits."""

    def __init__(self, key: bytes, *, is_kept: bool = True) -> None:
        self._key = key
        self.is_kept = is_kept
        """False: the next process has another key, and its digests compare with none of these."""
        self.key_id = hashlib.blake2b(b"key id", key=key, digest_size=8).hexdigest()

    @staticmethod
    def load(path: str) -> Keyed:
        """Return the machine's key, made the first time."""
        with contextlib.suppress(OSError):
            if found := _read(path):
                return Keyed(found)
        key = os.urandom(_KEY_BYTES)
        try:
            _write(path, key)
        except FileExistsError:
            with contextlib.suppress(OSError):
                if found := _read(path):
                    return Keyed(found)
            return Keyed(key, is_kept=False)
        except OSError:
            return Keyed(key, is_kept=False)
        return Keyed(key)

    def of_value(self, place: str, value: object) -> str:
        """Return the digest of a value at a place; equal values elsewhere have other digests."""
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        digest = self.hasher()
        digest.update(f"value\0{place}\0{text}".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def hasher(self) -> hashlib.blake2b:
        """Return what content is fed to, piece by piece."""
        return hashlib.blake2b(key=self._key, digest_size=_DIGEST_BYTES)


def _read(path: str) -> bytes | None:
    """Return the key in a file that only its owner can read; None if that is not what is there."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        key = os.read(fd, _KEY_BYTES + 1)
        safe = os.fstat(fd).st_mode & 0o077 == 0
    finally:
        os.close(fd)
    return key if safe and len(key) == _KEY_BYTES else None


def _write(path: str, key: bytes) -> None:
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(fd, key)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
