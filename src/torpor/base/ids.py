"""Identifiers: a prefix that tells the kind, and 100 bits that no one can guess."""

from __future__ import annotations

import hashlib
import re
import secrets

from torpor.errors import InvalidRequest

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, lower case
_LENGTH = 20
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_ID = re.compile(
    rf"(sbx|snap|lyr|exec|ctx|tok|tpl|bld|vol|vsnap|db|chg|bkp|drl|sch)_[{_ALPHABET}]{{{_LENGTH}}}"
)


def new_id(prefix: str) -> str:
    """Return a fresh id such as `sbx_…`."""
    return f"{prefix}_{''.join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))}"


def id_from(seed: bytes, prefix: str, index: int) -> str:
    """Return an id that only who knows `seed` can tell before, and always the same for the same arguments."""
    found = hashlib.sha256(seed + f"{prefix}/{index}".encode()).digest()
    return f"{prefix}_{''.join(_ALPHABET[byte % len(_ALPHABET)] for byte in found[:_LENGTH])}"


def is_id(text: str, prefix: str) -> bool:
    """Return whether `text` is an id with that prefix."""
    return text.startswith(f"{prefix}_") and _ID.fullmatch(text) is not None


def check_id(text: str, prefix: str, what: str) -> str:
    """Return `text` if it is an id with that prefix.

    Raises:
        InvalidRequest: it is not.
    """
    if not is_id(text, prefix):
        raise InvalidRequest(
            f"{text!r} is not a {what} id",
            hint=f"a {what} id looks like {prefix}_ and {_LENGTH} letters and digits",
        )
    return text


def check_name(text: str, what: str) -> str:
    """Return `text` if it can name a thing (1 to 63 of a-z 0-9 . _ -, no id).

    Raises:
        InvalidRequest: it cannot.
    """
    if _NAME.fullmatch(text) is None:
        raise InvalidRequest(
            f"{text!r} cannot name a {what}",
            hint="use 1 to 63 of a-z, 0-9, '.', '_' and '-', with a letter or digit at both ends",
        )
    if _ID.fullmatch(text):
        raise InvalidRequest(
            f"{text!r} looks like an id and cannot name a {what}", hint="choose another name"
        )
    return text
