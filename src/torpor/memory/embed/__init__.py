"""Embedders: none, a small model on the CPU, or any endpoint that speaks the OpenAI form."""

from __future__ import annotations

from torpor.memory.embed.base import Embedder

__all__ = ["Embedder"]
