"""A Dockerfile that is understood, with its context, and the digest of both."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torpor.templates.dockerfile.context import Context, readable
from torpor.templates.dockerfile.meaning import Copy, Meaning

VERSION = 1
"""Part of every digest; raised when a Dockerfile would come out otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    """A Dockerfile, ready to be carried out."""

    path: Path
    meaning: Meaning
    context: Context
    grows: bool = False
    """The disk is larger than the base's."""

    def digest(self, base_digest: str) -> str:
        """Return the digest of all that decides what comes of it: base, steps, and the files of the context.

        Blocks. Raises as `Context.select`.
        """
        hasher = hashlib.sha256(f"dockerfile {VERSION} {base_digest} {self.grows}".encode())
        meaning = self.meaning
        for step in meaning.steps:
            plain = {key: value for key, value in asdict(step).items() if key != "line"}
            if isinstance(step, Copy):
                where = f"{self.path}, line {step.line}"
                with readable(where):
                    plain["files"] = self.context.select(step.sources, where).digest()
            _add(hasher, [type(step).__name__, plain])
        _add(hasher, [sorted(meaning.env.items()), meaning.user, meaning.cwd, meaning.command])
        return hasher.hexdigest()


def _add(hasher: hashlib._Hash, value: object) -> None:
    hasher.update(json.dumps(value, sort_keys=True).encode() + b"\0")
