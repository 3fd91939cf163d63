"""Passwords: kept for their owner alone, and proved without being told."""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
from pathlib import Path

import pytest

from torpor.databases import passwords
from torpor.databases.passwords import Passwords, new_password, url_of, verifier_of
from torpor.errors import DataDamaged, InsufficientResources
from torpor.model_databases import DatabaseId

ONE = DatabaseId("db_00000000000000000001")


def test_a_verifier_proves_the_password_and_no_other() -> None:
    password = new_password()
    verifier = verifier_of(password)
    head, _, keys = verifier.rpartition("$")
    iterations, _, salt = head.removeprefix("SCRAM-SHA-256$").partition(":")
    stored, _, server = keys.partition(":")

    def proves(text: str) -> bool:
        salted = hashlib.pbkdf2_hmac(
            "sha256", text.encode(), base64.b64decode(salt), int(iterations)
        )
        key = hmac.digest(salted, b"Client Key", "sha256")
        return base64.b64encode(hashlib.sha256(key).digest()).decode() == stored and (
            base64.b64encode(hmac.digest(salted, b"Server Key", "sha256")).decode() == server
        )

    assert proves(password)
    assert not proves(password + "x")
    assert password not in verifier
    assert verifier_of(password) != verifier, "each has a salt of its own"


def test_it_is_kept_for_its_owner_and_replaced_whole(tmp_path: Path) -> None:
    found = Passwords(tmp_path / "databases")
    found.write(ONE, "a" * 32)
    found.write(ONE, "b" * 32)
    assert found.read(ONE) == "b" * 32
    (kept,) = (tmp_path / "databases").iterdir()
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert found.known() == [ONE]
    found.remove(ONE)
    found.remove(ONE)
    assert found.known() == []
    with pytest.raises(DataDamaged, match="cannot be read"):
        found.read(ONE)
    kept.write_text("short")
    with pytest.raises(DataDamaged):
        found.read(ONE)


def test_passwords_are_long_and_differ_and_fit_a_url() -> None:
    some = {new_password() for _ in range(100)}
    assert len(some) == 100
    assert all(len(p) == 32 and p in url_of(p, 1) for p in some)


def test_a_full_disk_is_told_and_the_password_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, old = Passwords(tmp_path / "databases"), new_password()
    kept.write(ONE, old)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(passwords, "write_atomic", full)
    with pytest.raises(InsufficientResources, match=ONE):
        kept.write(ONE, new_password())
    assert kept.read(ONE) == old
