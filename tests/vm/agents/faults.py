"""What went wrong in real agents, as shell commands for the fake ones, each with the probe that has to find it.

`ALL` is every fault; `GROUPS` puts those into one change that touch different things and that different probes find;
`ALONE` are only tried one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.vm.agents import checks

H = "/home/agent/.hermes"
CODE = f"{H}/hermes-agent"
C = "/home/agent/.openclaw"
BY_AGENT = "runuser -u agent --"


@dataclass(frozen=True, slots=True)
class Update:
    """A change of a fake agent that is good: the control of the faults that are added to it."""

    profile: str
    command: str
    checks: dict[str, Any]
    reboot: bool = False


HERMES = Update(
    "hermes", f"{BY_AGENT} hermes update && systemctl restart hermes-gateway", checks.HERMES
)
AGENT_ZERO = Update("agent-zero", "a0 update && systemctl restart agent-zero", checks.AGENT_ZERO)
AGENT_ZERO_BOOTED = Update("agent-zero", AGENT_ZERO.command, checks.AGENT_ZERO, reboot=True)
OPENCLAW = Update(
    "openclaw",
    "openclaw update && systemctl restart openclaw-gateway",
    checks.OPENCLAW,
)
DOCTOR = Update("openclaw", f"{BY_AGENT} openclaw doctor --fix", checks.OPENCLAW)
UPDATES = {
    "hermes update": HERMES,
    "agent zero update": AGENT_ZERO,
    "agent zero update and boot": AGENT_ZERO_BOOTED,
    "openclaw update": OPENCLAW,
    "openclaw repair": DOCTOR,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A thing that went wrong in an update."""

    update: Update
    breaks: str
    """Run after the update, as root. It ends with status 0, unless that is what is wrong."""
    found_by: str
    """The check that has to find it; or what ends the change, where it is not a check."""
    options: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    """Written by the command just before it goes wrong."""


def edited(file: str, expression: str) -> str:
    return f"sed -i '{expression}' {file}"


ALL = {
    "a migration renames the toolset and all tools are gone": Fault(
        HERMES, edited(f"{H}/config.yaml", "/^  - /d"), "required/inventory:tools"
    ),
    "the file of scheduled jobs is emptied": Fault(
        HERMES, f"echo '{{\"jobs\": []}}' > {H}/cron/jobs.json", "required/inventory:jobs"
    ),
    "keys are stripped from the environment file": Fault(
        HERMES, edited(f"{H}/.env", "/NOTES_TOKEN/d"), "required/inventory:env"
    ),
    "skills are deleted by a curator": Fault(
        HERMES, f"rm -r {H}/skills/invoices {H}/skills/travel", "required/inventory:skills"
    ),
    "a dependency is gone from its environment, and that is only a warning": Fault(
        HERMES,
        f"rm {CODE}/venv/lib/python3*/site-packages/fakedep.py",
        "required/command:imports",
    ),
    "a required tool server is away": Fault(
        HERMES, f"rm {H}/bin/notes-server", "required/command:notes server"
    ),
    "a repair fills the disk": Fault(
        HERMES, f"fallocate -l 300M {H}/state.db.repaired", "required/command:growth"
    ),
    "jobs without a model of their own stop firing": Fault(
        HERMES,
        edited(f"{H}/config.yaml", "s/follow_model: true/follow_model: false/"),
        "required/command:canary job",
    ),
    "model and provider do not fit, so old sessions get a 404": Fault(
        HERMES,
        edited(f"{H}/config.yaml", "s/provider: acme/provider: other/"),
        "required/turn:resumed",
    ),
    "pages of the database are overwritten": Fault(
        HERMES,
        f"systemctl stop hermes-gateway && dd if=/dev/urandom of={H}/state.db bs=4096 seek=4 count=8"
        " conv=notrunc status=none && systemctl start hermes-gateway",
        f"required/sqlite:{H}/state.db",
    ),
    "the gateway is started again and again, and the update says success": Fault(
        HERMES,
        f"{edited(f'{CODE}/fake_agent.py', 's/self.tick()/os._exit(1)/')}"
        " && systemctl restart --no-block hermes-gateway",
        "required/service:hermes-gateway",
    ),
    "it loops over a simple word": Fault(
        HERMES,
        edited(
            f"{CODE}/fake_agent.py",
            "s/        messages = \\[.*/        while True: time.sleep(0.1)/",
        ),
        "required/turn:new",
    ),
    "power fails in the middle of the update": Fault(
        HERMES, "sync; echo b > /proc/sysrq-trigger; sleep 600", "machine"
    ),
    "the update never ends": Fault(
        HERMES, "echo waits; sleep 1000", "command", {"run_timeout_seconds": 20}, says="waits"
    ),
    "prompts of scheduled jobs are overwritten, their number stays": Fault(
        AGENT_ZERO,
        edited("/a0/usr/scheduler/tasks.json", "s/Do the report/Do nothing/"),
        "required/inventory:jobs",
    ),
    "knowledge is missing after the update": Fault(
        AGENT_ZERO, "rm -r /a0/usr/knowledge", "required/inventory:memory"
    ),
    "another embedding model cannot read the memory": Fault(
        AGENT_ZERO,
        edited("/a0/usr/settings.json", "s/embed-1/embed-2/"),
        "required/command:recall",
    ),
    "it edits its own code until it is dead": Fault(
        AGENT_ZERO,
        "echo 'def broken(:' >> /a0/agent_zero.py && systemctl restart --no-block agent-zero",
        "required/turn:new",
    ),
    "its data is lost when the machine starts again": Fault(
        AGENT_ZERO_BOOTED,
        "cp -a /a0/usr /run/a0 && rm -r /a0/usr && ln -s /run/a0 /a0/usr",
        "required/file:/a0/usr/settings.json",
    ),
    "it starts, and fails at the first message": Fault(
        OPENCLAW,
        edited(
            "/usr/lib/node_modules/openclaw/fake_agent.py",
            's/return self.turn(text, "channel")/raise RuntimeError("broken")/',
        )
        + " && systemctl restart openclaw-gateway",
        "required/turn:message",
    ),
    "the log of the database is unlinked under its writer": Fault(
        OPENCLAW,
        f"rm {C}/state/openclaw.sqlite-wal",
        f"required/sqlite:{C}/state/openclaw.sqlite",
    ),
    "an update of a plugin logs a channel out": Fault(
        OPENCLAW,
        edited(f"{C}/credentials/whatsapp/creds.json", "s/true/false/"),
        "required/command:whatsapp",
    ),
    "the gateway stays stopped, and may not be started": Fault(
        OPENCLAW,
        "systemctl stop openclaw-gateway && rm /etc/systemd/system/openclaw-gateway.service"
        " && systemctl mask --quiet openclaw-gateway",
        "required/service:openclaw-gateway",
    ),
    "a repair overwrites a good configuration": Fault(
        DOCTOR,
        edited(f"{C}/openclaw.json", "s/18789/18790/"),
        "required/inventory:settings",
    ),
}
ALONE = ("its data is lost when the machine starts again",)
"""It and its control boot the machine, which takes long; a change that boots is also in `tests/vm/test_changes.py`."""
GROUPS = (
    (
        "a migration renames the toolset and all tools are gone",
        "the file of scheduled jobs is emptied",
        "keys are stripped from the environment file",
        "skills are deleted by a curator",
        "a dependency is gone from its environment, and that is only a warning",
        "a required tool server is away",
        "a repair fills the disk",
    ),
    (
        "jobs without a model of their own stop firing",
        "model and provider do not fit, so old sessions get a 404",
    ),
    ("pages of the database are overwritten",),
    (
        "it loops over a simple word",
        "the gateway is started again and again, and the update says success",
    ),
    ("power fails in the middle of the update",),
    ("the update never ends",),
    (
        "prompts of scheduled jobs are overwritten, their number stays",
        "knowledge is missing after the update",
        "another embedding model cannot read the memory",
    ),
    ("it edits its own code until it is dead",),
    (
        "it starts, and fails at the first message",
        "the log of the database is unlinked under its writer",
        "an update of a plugin logs a channel out",
    ),
    ("the gateway stays stopped, and may not be started",),
    ("a repair overwrites a good configuration",),
)
