"""Whatever a secret is, it is in no inventory: not as it is, not as a digest that could be looked up."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.secrets_in import assert_no_secret
from tests.unit.guest.inventory.machine import Machine, hermes, openclaw

HOME = "/home/agent/.hermes"
_SECRETS = st.from_regex(r"[A-Za-z0-9+/=_-]{6,40}!", fullmatch=True)
"""Ends in what no other word of the tree does, so that finding one is no chance."""


@settings(max_examples=25, deadline=None)
@given(_SECRETS)
def test_a_secret_wherever_an_agent_has_one(secret: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder) / "root")
        hermes(machine)
        openclaw(machine)
        quoted = json.dumps(secret)
        machine.put(f"{HOME}/.env", f"A={secret}\nexport B='{secret}'\nC=\"{secret}\"\n{secret}\n")
        machine.put(
            f"{HOME}/config.yaml",
            f"model:\n  default: {quoted}\n  api_key: {quoted}\n  base_url: {quoted}\n"
            f"toolsets: [web]\nmcp_servers:\n  x: {{env: {{T: {quoted}}}, enabled: true}}\n"
            f"personality: |\n  {secret}\n",
        )
        machine.put(f"{HOME}/auth.json", json.dumps({"refresh": secret}))
        job = {"id": "a", "prompt": secret, "token": secret, "schedule": {"note": secret}}
        machine.put(f"{HOME}/cron/jobs.json", json.dumps({"jobs": [job]}))
        machine.put(f"{HOME}/memories/MEMORY.md", secret)
        machine.put(f"{HOME}/skills/mail/SKILL.md", secret)
        machine.put(
            "/etc/crontab", f"S={secret}\n5 * * * * root S={secret} /opt/x --key {secret}\n"
        )
        machine.put("/etc/environment", f"DB={secret}\n")
        machine.put(
            "/root/.openclaw/openclaw.json",
            f"{{channels: {{t: {{botToken: {quoted}}}}}, gateway: {{auth: {{token: {quoted}}}}}}}",
        )
        for profile in ("hermes", "openclaw", "machine"):
            text = json.dumps(machine.take(profile).to_json())
            if profile == "hermes":  # the model's name is what the profile shows
                text = text.replace(json.dumps({"value": secret}), "")
            assert_no_secret(text, (secret,))
