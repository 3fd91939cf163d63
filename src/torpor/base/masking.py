"""Masks what looks like a secret in text that is kept or shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SECRETS = (
    # NAME=value and "name": "value" where the name says that it is one
    re.compile(
        r"(?i)((?:api[_-]?key|access[_-]?key|secret|token|passw(?:or)?d|credential)\w*[\"']?\s{0,3}[=:]\s{0,3}[\"']?)"
        r"([^\s\"',;]{4,})"
    ),
    re.compile(r"(?i)\b((?:bearer|basic)\s{1,3})([A-Za-z0-9._~+/=-]{8,})"),
    re.compile(r"()\b((?:sk|pk|rk|ghp|gho|ghs|glpat|xox[abp]|AKIA)[-_]?[A-Za-z0-9_-]{12,})"),
    re.compile(r"(://[^/\s:@]{1,64}:)([^/\s@]{1,128})(?=@)"),
    re.compile(
        r"()\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
    ),  # a JSON web token
    re.compile(r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)[^-]*"),
)
_MASK = "[masked]"


def masked(text: str) -> str:
    """Return text without what looks like a secret."""
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: f"{found[1]}{_MASK}", text)
    return text


def masked_json(value: Any) -> Any:
    """Return plain JSON with all its texts masked, and the names of its fields as they are."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {name: masked_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked_json(item) for item in value]
    return value
