"""What looks like a secret does not get into reports."""

from __future__ import annotations

import pytest

from torpor.base.masking import masked


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("OPENAI_API_KEY=abcdefgh rest", "OPENAI_API_KEY=[masked] rest"),
        ("Authorization: Bearer abcdefghij", "Authorization: Bearer [masked]"),
        ("postgres://me:hunter2@db/x", "postgres://me:[masked]@db/x"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl now", "got [masked] now"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAAAA=\n-----END RSA PRIVATE KEY-----\nend",
            "-----BEGIN RSA PRIVATE KEY-----[masked]-----END RSA PRIVATE KEY-----\nend",
        ),
        ("nothing of the kind: 3 tokens, 2 secrets", "nothing of the kind: 3 tokens, 2 secrets"),
    ],
)
def test_masked(text: str, left: str) -> None:
    assert masked(text) == left
