"""Databases' passwords: one file each in the home, for its owner alone; the machine gets only what proves them.

PostgreSQL keeps a SCRAM verifier, and that is made here. So a password is in no machine's memory, snapshot or volume,
in no row and in no log.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from pathlib import Path
from urllib.parse import quote

from torpor.base.fsio import fsync_dir, make_private_dir, write_atomic
from torpor.errors import DataDamaged
from torpor.layers.space import full_disk_told
from torpor.model_databases import DATABASE, LOOPBACK, USERNAME, DatabaseId

_BYTES = 24
_ITERATIONS = 4096
"""What PostgreSQL itself takes; the password has 192 random bits, so more would guard nothing."""
_LEAST, _MOST = 20, 200


def new_password() -> str:
    """Return a password that nobody can guess, of letters, digits, `-` and `_`."""
    return secrets.token_urlsafe(_BYTES)


def verifier_of(password: str) -> str:
    """Return what PostgreSQL keeps of a password, as `ALTER ROLE … PASSWORD` takes it (RFC 5803)."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode("ascii"), salt, _ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    parts = [base64.b64encode(part).decode("ascii") for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${_ITERATIONS}:{parts[0]}${parts[1]}:{parts[2]}"


def url_of(password: str, port: int, host: str = LOOPBACK) -> str:
    """Return the URL that clients connect with."""
    return f"postgresql://{USERNAME}:{quote(password, safe='')}@{host}:{port}/{DATABASE}"


class Passwords:
    """The files. Every method blocks, and is durable when it returns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, database_id: DatabaseId, password: str) -> None:
        """Keep a password, in place of an earlier one. Raises `InsufficientResources` when the disk is full."""
        with full_disk_told(f"the password of {database_id}"):
            make_private_dir(self._folder)
            write_atomic(self._path(database_id), password.encode("ascii") + b"\n", mode=0o600)

    def read(self, database_id: DatabaseId) -> str:
        """Return the password.

        Raises:
            DataDamaged: there is none, or it is none of ours.
        """
        try:
            text = self._path(database_id).read_bytes()[: _MOST + 1].decode("ascii").strip()
        except (OSError, ValueError) as exc:
            raise DataDamaged(
                f"the password of {database_id} cannot be read",
                hint="give it a new one: torpor db reset-password",
            ) from exc
        if not _LEAST <= len(text) <= _MOST:
            raise DataDamaged(
                f"the password of {database_id} is not what was written",
                hint="give it a new one: torpor db reset-password",
            )
        return text

    def find(self, database_id: DatabaseId) -> str | None:
        """Return the password; None when there is none that can be read."""
        try:
            return self.read(database_id)
        except DataDamaged:
            return None

    def remove(self, database_id: DatabaseId) -> None:
        """Forget a password, if there is one."""
        try:
            self._path(database_id).unlink()
        except FileNotFoundError:
            return
        fsync_dir(self._folder)

    def known(self) -> list[DatabaseId]:
        """Return the databases that a password is kept for."""
        return [DatabaseId(path.stem) for path in self._folder.glob("db_*.password")]

    def _path(self, database_id: DatabaseId) -> Path:
        return self._folder / f"{database_id}.password"
