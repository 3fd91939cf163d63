"""Makes text from a machine fit to keep: bounded, printable, without what looks like a secret."""

from __future__ import annotations

from torpor.base.masking import masked

FOUND_CHARS_MOST = 500
OUTPUT_CHARS_MOST = 4000


def clean(text: str, *, most: int = FOUND_CHARS_MOST) -> str:
    """Return one line of `text`: control characters spelled out, secrets masked, the middle left out."""
    line = " ".join(masked(text[: most * 4]).split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return shown if len(shown) <= most else f"{shown[: most - 20]} … {len(text)} chars"


def clean_output(stdout: bytes, stderr: bytes = b"", *, most: int = OUTPUT_CHARS_MOST) -> str:
    """Return the end of what a command wrote as text with lines."""
    parts = [data[-most * 4 :].decode("utf-8", "replace") for data in (stdout, stderr)]
    text = masked("\n".join(part.rstrip() for part in parts if part.strip()))
    lines = (
        "".join(
            c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line
        )
        for line in text.splitlines()
    )
    shown = "\n".join(lines)
    return shown if len(shown) <= most else f"…{shown[len(shown) - most + 1 :]}"
