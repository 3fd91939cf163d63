"""Frozen dataclasses to JSON values and back, by their type hints alone.

Times are ISO 8601 with a zone, enums their values, tuples lists. What a newer end sends beside the known fields
is ignored; a field that has a default may be missing.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar, cast

T = TypeVar("T")


def to_plain(value: object) -> Any:
    """Return `value` as what `json.dumps` takes."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain(v) for v in value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def from_plain(hint: type[T], data: object) -> T:
    """Return what `to_plain` made `data` of.

    Raises:
        ValueError: `data` is not of that shape.
    """
    try:
        return cast(T, _parse(hint, data))
    except (TypeError, KeyError, AttributeError) as exc:
        raise ValueError(f"not the JSON of a {getattr(hint, '__name__', hint)}: {exc}") from exc


def _parse(hint: Any, data: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(hint), data)
    if origin is not None:
        return _container(origin, typing.get_args(hint), data)
    if isinstance(hint, type):
        if dataclasses.is_dataclass(hint):
            return _instance(hint, data)
        if issubclass(hint, Enum):
            return hint(data)
        if issubclass(hint, datetime):
            return datetime.fromisoformat(data)
        if hint is float and isinstance(data, int):
            return float(data)
    return data


def _union(options: Sequence[Any], data: Any) -> Any:
    """None is None; one other option is meant; several are left as they are."""
    if data is None:
        return None
    wanted = [option for option in options if option is not types.NoneType]
    return _parse(wanted[0], data) if len(wanted) == 1 else data


def _container(origin: Any, arguments: Sequence[Any], data: Any) -> Any:
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_parse(arguments[0], item) for item in data)
        return tuple(_parse(each, item) for each, item in zip(arguments, data, strict=True))
    if origin is list:
        return [_parse(arguments[0], item) for item in data]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _parse(arguments[1], value) for key, value in data.items()}
    return data


def _instance(cls: type[Any], data: Any) -> Any:
    hints, fields = _shape(cls)
    values = {name: _parse(hints[name], data[name]) for name in fields if name in data}
    return cls(**values)


_shapes: dict[type[Any], tuple[dict[str, Any], tuple[str, ...]]] = {}


def _shape(cls: type[Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the types of a dataclass's fields, and their names in order; looked up once."""
    if cls not in _shapes:
        names = tuple(field.name for field in dataclasses.fields(cls))
        _shapes[cls] = (typing.get_type_hints(cls), names)
    return _shapes[cls]
