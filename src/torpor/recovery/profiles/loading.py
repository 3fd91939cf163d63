"""Profiles by name, path or text."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from torpor.errors import InvalidRequest, NotFound
from torpor.recovery.profiles.document import BYTES_MOST, read_document
from torpor.recovery.profiles.model import AgentProfile
from torpor.recovery.profiles.reading import NAME, profile_of

_SHIPPED = Path(__file__).parent
MACHINE = "machine"
"""The profile of a machine on which no agent is known."""


def shipped_names() -> tuple[str, ...]:
    """Return the names of the profiles that come with the package."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml")))


@functools.cache
def shipped(name: str) -> AgentProfile:
    """Return a profile that comes with the package. Raises `NotFound`."""
    return parse_profile(shipped_text(name), source=f"{name}.yaml")


def shipped_text(name: str) -> str:
    """Return the words of a profile that comes with the package. Raises `NotFound`."""
    if name not in shipped_names():
        raise NotFound(
            f"no agent profile is called {name!r}",
            hint=f"shipped: {', '.join(shipped_names())}; for one of your own give the path of its file",
        )
    return (_SHIPPED / f"{name}.yaml").read_text()


def load_profile(name_or_path_or_text: str | Path) -> AgentProfile:
    """Return a profile: a shipped one by name, one in a file (text with a `/` or ending in .yaml or .yml), or YAML.

    Reads files; call it in a thread when there is a loop.

    Raises:
        NotFound: there is no such profile or file.
        InvalidRequest: it is malformed; the message has source, line and column.
    """
    text = str(name_or_path_or_text)
    is_text = not isinstance(name_or_path_or_text, Path) and ("\n" in text or ":" in text)
    if is_text:
        return parse_profile(text, source="profile")
    if isinstance(name_or_path_or_text, Path) or "/" in text or text.endswith((".yaml", ".yml")):
        return parse_profile(read_profile_file(Path(text)), source=text)
    if not re.fullmatch(NAME, text):
        raise InvalidRequest(
            f"{text!r} is no name of an agent profile",
            hint=f"shipped: {', '.join(shipped_names())}",
        )
    return shipped(text)


def read_profile_file(path: Path) -> str:
    """Return the words of a profile in a file. Raises `NotFound`, `InvalidRequest`."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MOST + 1)
        return data.decode()
    except FileNotFoundError as exc:
        raise NotFound(f"there is no profile file {path}", path=str(path)) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"{path} cannot be read as a profile: {exc}") from exc


def parse_profile(text: str, *, source: str) -> AgentProfile:
    """Return the profile that YAML describes. `source` names it in errors. Raises `InvalidRequest`."""
    return profile_of(read_document(text, source=source))
