"""An embedder for tests: meaning is a table of words."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

SENSES = {
    "feline": 0, "cat": 0, "kitten": 0, "car": 1, "vehicle": 1, "automobile": 1,
    "database": 2, "postgres": 2, "weather": 3, "rain": 3,
}  # fmt: skip


class FakeEmbedder:
    """Words of one sense are close; it counts what it is asked."""

    def __init__(self, model: str = "fake@1") -> None:
        self.model = model
        self.dim = 64
        self.asked = 0

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        self.asked += len(texts)
        found = []
        for text in texts:
            vector = np.full(self.dim, 0.001, np.float32)
            for word in re.findall(r"\w+", text.lower()):
                place = SENSES.get(word, 4 + zlib.crc32(word.encode()) % 60)
                vector[place] += 1
            found.append((vector / np.linalg.norm(vector)).astype(np.float16).tobytes())
        return found
