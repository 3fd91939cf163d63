"""The shapes of inventories, their differences and agent profiles in JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from torpor.server.wire import Wire


class EntryWire(Wire):
    """One thing that is there."""

    name: str
    shown: dict[str, str | int | bool | None] | None = None
    hidden: Annotated[
        dict[str, str] | None,
        Field(description="Keyed digests of values that stay in the machine."),
    ] = None
    unknown: Annotated[
        list[str] | None, Field(description="Fields that could not be found out this time.")
    ] = None


class SectionWire(Wire):
    """All entries of one kind."""

    is_complete: bool
    notes: list[str]
    entries: list[EntryWire]


class InventoryWire(Wire):
    """What a machine held at one moment."""

    format: int
    taken_at: str
    profile: str
    profile_digest: str
    key_id: str
    duration_ms: int
    notes: list[str]
    sections: dict[str, SectionWire]


class InventoryRequest(Wire):
    """What POST …/inventory takes; nothing is needed."""

    profile: Annotated[
        str | None, Field(description="A shipped profile's name, or the YAML of one of your own.")
    ] = None
    commands: Annotated[
        bool, Field(description="Also run the profile's commands that tell versions.")
    ] = False


class CountWire(Wire):
    """How many entries of a kind came, went and changed."""

    added: int
    removed: int
    changed: int


class ChangeWire(Wire):
    """An entry that is not what it was."""

    kind: str
    name: str
    what: str
    fields: list[dict[str, Any]]


class InventoryDiffWire(Wire):
    """What differs between two inventories."""

    is_empty: bool
    sentences: list[str]
    counts: dict[str, CountWire]
    changes: list[ChangeWire]
    not_compared: list[str]


class ProfileWire(Wire):
    """An agent profile that comes with the package."""

    name: str
    title: str
    description: str
    text: Annotated[str, Field(description="Its YAML.")]


class ProfileListWire(Wire):
    """The agent profiles that come with the package, by name."""

    profiles: list[ProfileWire]


class DetectedWire(Wire):
    """Which agent profile a machine has."""

    name: str
    title: str
    is_own: Annotated[bool, Field(description="It is the machine's own file.")]
    fits: Annotated[list[str], Field(description="All shipped profiles that fit.")]
    problem: Annotated[str | None, Field(description="Why the machine's own profile is not used.")]
