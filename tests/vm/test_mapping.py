"""Every call of ours in docs/reference/mapping.md runs on a real machine."""

from __future__ import annotations

from pathlib import Path

from tests.contract.api.test_mapping import run_rows
from torpor import Sandbox, Templates

ON_TCP = ("sbx.get_host(8000)", "sbx.preview_url(8000, ttl_seconds=600)")
"""What a daemon on a Unix socket has not; the contract's tier runs it."""


def test_every_call_of_ours_runs(base: str, tmp_path: Path) -> None:
    before = {sandbox.id for sandbox in Sandbox.list()}
    template = Templates.build("code-interpreter").name
    try:
        with Sandbox.create(template=template) as sandbox, Sandbox.create(template=base) as other:
            assert run_rows(sandbox, other, tmp_path / "file", skipped=ON_TCP) > 60
    finally:
        for made in Sandbox.list():
            if made.id not in before:
                made.delete()
