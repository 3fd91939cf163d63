"""Agent profiles: where an agent keeps what it is made of, as data. docs/reference/profiles.md has the schema."""

from torpor.recovery.profiles.loading import load_profile, parse_profile, shipped, shipped_names
from torpor.recovery.profiles.model import (
    AgentProfile,
    Command,
    Cursor,
    QuiesceHook,
    Source,
    Turn,
    Version,
)

__all__ = [
    "AgentProfile",
    "Command",
    "Cursor",
    "QuiesceHook",
    "Source",
    "Turn",
    "Version",
    "load_profile",
    "parse_profile",
    "shipped",
    "shipped_names",
]
