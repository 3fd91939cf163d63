"""Read checked values out of a TOML table; every complaint names file, key, what is so and what was wanted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from torpor.base.near import meant
from torpor.errors import InvalidRequest


class Table:
    """One table of a recipe file."""

    def __init__(self, values: Mapping[str, object], *, file: Path, prefix: str = "") -> None:
        self._values = values
        self._file = file
        self._prefix = prefix

    def key(self, name: str) -> str:
        """Return the full name of a key of this table."""
        return f"{self._prefix}{name}"

    def wrong(
        self, name: str, found: object, wanted: str, *, hint: str | None = None
    ) -> InvalidRequest:
        """Return the error for key `name`."""
        return InvalidRequest(
            f"{self._file}: {self.key(name)} is {_shown(found)}; wanted {wanted}",
            hint=hint,
            file=self._file,
            key=self.key(name),
        )

    def only(self, known: Collection[str]) -> None:
        """Refuse keys that are not in `known`.

        Raises:
            InvalidRequest: one is not; the hint has the nearest known key.
        """
        for name in self._values:
            if name not in known:
                raise InvalidRequest(
                    f"{self._file}: unknown key {self.key(name)!r}",
                    hint=meant(name, known) or f"known: {', '.join(sorted(known))}",
                    file=self._file,
                    key=self.key(name),
                )

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a string without NUL; `default` if the key is missing."""
        found = self._values.get(name)
        if found is None:
            return default
        if not isinstance(found, str) or "\0" in found:
            raise self.wrong(name, found, "a string")
        return found

    def required(self, name: str) -> str:
        """Return a string that is there and not empty."""
        found = self.text(name)
        if not found:
            raise self.wrong(name, found, "a string that is not empty")
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        found = self._values.get(name, default)
        if not isinstance(found, bool):
            raise self.wrong(name, found, "true or false")
        return found

    def number(self, name: str, low: int, high: int) -> int | None:
        """Return a whole number from `low` to `high`; None if the key is missing."""
        found = self._values.get(name)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not low <= found <= high:
            raise self.wrong(name, found, f"a whole number from {low} to {high}")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings that are not empty; () if the key is missing."""
        found = self._values.get(name, [])
        if not isinstance(found, list):
            raise self.wrong(name, found, "a list of strings")
        for number, item in enumerate(found):
            if not isinstance(item, str) or not item.strip() or "\0" in item:
                raise self.wrong(f"{name}[{number}]", item, "a string that is not empty")
        return tuple(found)

    def mapping(self, name: str) -> dict[str, str]:
        """Return a table of strings; {} if the key is missing."""
        found = self._values.get(name, {})
        if not isinstance(found, dict):
            raise self.wrong(name, found, "a table of strings")
        for key, value in found.items():
            if not isinstance(value, str) or "\0" in value:
                raise self.wrong(f"{name}.{key}", value, "a string")
        return dict(found)

    def tables(self, name: str) -> tuple[Table, ...]:
        """Return the tables of an array `[[name]]`; () if the key is missing."""
        found = self._values.get(name, [])
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise self.wrong(name, found, f"tables, each begun with [[{self.key(name)}]]")
        return tuple(
            Table(item, file=self._file, prefix=f"{self.key(name)}[{number}].")
            for number, item in enumerate(found)
        )


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
