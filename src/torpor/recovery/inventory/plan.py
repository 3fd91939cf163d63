"""What a guest is told to look at: a profile's words, laid over those that hold for every machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torpor.recovery.profiles import AgentProfile, Source, shipped
from torpor.recovery.profiles.loading import MACHINE


def plan_of(profile: AgentProfile, *, commands: bool) -> dict[str, Any]:
    """Return the plan for a profile; with `commands` the guest also runs those that tell versions."""
    base = shipped(MACHINE)
    both = (base,) if profile == base else (base, profile)

    def joined(*keys: str) -> list[str]:
        return list(dict.fromkeys(p for each in both for key in keys for p in getattr(each, key)))

    return {
        "homes": list(profile.homes),
        "user": profile.user,
        "watch": joined("watch"),
        "skip": joined("exclude", "regenerable", "machine_bound"),
        "env_files": joined("env_files"),
        "sqlite": joined("sqlite"),
        "python": joined("python"),
        "npm": joined("npm"),
        "sources": {
            kind: [_source(source) for source in sources]
            for kind, sources in profile.sources.items()
        },
        "versions": [asdict(version) for version in profile.versions],
        "commands": commands,
    }


def _source(source: Source) -> dict[str, Any]:
    return {key: value for key, value in asdict(source).items() if value not in (None, "", ())}


def signs_of(names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return by what a guest can tell which shipped profiles fit."""
    return {
        name: {"homes": list(shipped(name).homes), "detect": list(shipped(name).detect)}
        for name in names
        if shipped(name).detect
    }
