"""A checks file as it is given to a call: a path, its text, or what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torpor.errors import InvalidRequest, NotFound

Checks = str | Path | Mapping[str, Any]
"""A checks file: its path (a `Path`, or text on one line that ends in .yaml, .yml or .json or has no colon), its text,
or what it holds."""

_FILE_BYTES_MOST = 1 << 20
_PATH_CHARS_MOST = 4096
_NAME_CHARS_MOST = 200


def read_checks(checks: Checks) -> tuple[str, str]:
    """Return the text of a checks file and its name. Reads files; for a thread.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it is no text, or too large.
    """
    if isinstance(checks, Mapping):
        return _as_yaml(checks), "checks"
    is_path = isinstance(checks, Path) or (
        "\n" not in checks
        and len(checks) <= _PATH_CHARS_MOST
        and (checks.endswith((".yaml", ".yml", ".json")) or ":" not in checks)
    )
    if not is_path:
        return str(checks), "checks"
    path = Path(checks).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MOST + 1)
        text = data.decode("utf-8")
    except FileNotFoundError as exc:
        raise NotFound(
            f"there is no checks file {path}", hint="`torpor check init SANDBOX -o FILE` writes one"
        ) from exc
    except (OSError, ValueError) as exc:
        why = (
            exc.strerror
            if isinstance(exc, OSError)
            else "it is no text in UTF-8, or its name is none"
        )
        raise InvalidRequest(f"the checks file {path} cannot be read: {why}") from exc
    if len(data) > _FILE_BYTES_MOST:
        raise InvalidRequest(f"the checks file {path} is over {_FILE_BYTES_MOST} bytes")
    printable = "".join(char if char.isprintable() else "?" for char in str(checks))
    return text, printable[-_NAME_CHARS_MOST:]


def _as_yaml(checks: Mapping[str, Any]) -> str:
    import yaml

    try:
        return yaml.safe_dump(_plain(checks), sort_keys=False, allow_unicode=False)
    except yaml.YAMLError as exc:
        raise InvalidRequest(
            f"checks hold something that no checks file can: {' '.join(str(exc).split())}",
            hint="mappings, lists, texts, numbers, truth values",
        ) from exc


def _plain(value: Any) -> Any:
    """Return `value` of dicts and lists alone, none of them twice: YAML would write an alias for the second."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
