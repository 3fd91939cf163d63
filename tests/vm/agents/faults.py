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

    report: str
    """The report that it is made from, by its code; see `REPORTS`."""
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
        "H1", HERMES, edited(f"{H}/config.yaml", "/^  - /d"), "required/inventory:tools"
    ),
    "the file of scheduled jobs is emptied": Fault(
        "H2", HERMES, f"echo '{{\"jobs\": []}}' > {H}/cron/jobs.json", "required/inventory:jobs"
    ),
    "keys are stripped from the environment file": Fault(
        "H6", HERMES, edited(f"{H}/.env", "/NOTES_TOKEN/d"), "required/inventory:env"
    ),
    "skills are deleted by a curator": Fault(
        "H19", HERMES, f"rm -r {H}/skills/invoices {H}/skills/travel", "required/inventory:skills"
    ),
    "a dependency is gone from its environment, and that is only a warning": Fault(
        "H13",
        HERMES,
        f"rm {CODE}/venv/lib/python3*/site-packages/fakedep.py",
        "required/command:imports",
    ),
    "a required tool server is away": Fault(
        "H21", HERMES, f"rm {H}/bin/notes-server", "required/command:notes server"
    ),
    "a repair fills the disk": Fault(
        "H7", HERMES, f"fallocate -l 300M {H}/state.db.repaired", "required/command:growth"
    ),
    "jobs without a model of their own stop firing": Fault(
        "H5",
        HERMES,
        edited(f"{H}/config.yaml", "s/follow_model: true/follow_model: false/"),
        "required/command:canary job",
    ),
    "model and provider do not fit, so old sessions get a 404": Fault(
        "H17",
        HERMES,
        edited(f"{H}/config.yaml", "s/provider: acme/provider: other/"),
        "required/turn:resumed",
    ),
    "it waits for ever for a gateway that its own file of another machine names": Fault(
        "H26",
        HERMES,
        f'systemctl stop hermes-gateway && printf \'{{"pid": 1, "boot": "%s"}}\''
        f' "$(cat /proc/sys/kernel/random/boot_id)" > {H}/gateway.pid'
        " && systemctl start --no-block hermes-gateway",
        "required/http:http://127.0.0.1:8642/health",
    ),
    "pages of the database are overwritten": Fault(
        "H7",
        HERMES,
        f"systemctl stop hermes-gateway && dd if=/dev/urandom of={H}/state.db bs=4096 seek=4 count=8"
        " conv=notrunc status=none && systemctl start hermes-gateway",
        f"required/sqlite:{H}/state.db",
    ),
    "the gateway is started again and again, and the update says success": Fault(
        "H11",
        HERMES,
        f"{edited(f'{CODE}/fake_agent.py', 's/self.tick()/os._exit(1)/')}"
        " && systemctl restart --no-block hermes-gateway",
        "required/service:hermes-gateway",
    ),
    "it loops over a simple word": Fault(
        "A6",
        HERMES,
        edited(
            f"{CODE}/fake_agent.py",
            "s/        messages = \\[.*/        while True: time.sleep(0.1)/",
        ),
        "required/turn:new",
    ),
    "power fails in the middle of the update": Fault(
        "H14", HERMES, "sync; echo b > /proc/sysrq-trigger; sleep 600", "machine"
    ),
    "the update never ends": Fault(
        "H15",
        HERMES,
        "echo waits; sleep 1000",
        "command",
        {"run_timeout_seconds": 20},
        says="waits",
    ),
    "prompts of scheduled jobs are overwritten, their number stays": Fault(
        "H2",
        AGENT_ZERO,
        edited("/a0/usr/scheduler/tasks.json", "s/Do the report/Do nothing/"),
        "required/inventory:jobs",
    ),
    "knowledge is missing after the update": Fault(
        "A2", AGENT_ZERO, "rm -r /a0/usr/knowledge", "required/inventory:memory"
    ),
    "another embedding model cannot read the memory": Fault(
        "A4",
        AGENT_ZERO,
        edited("/a0/usr/settings.json", "s/embed-1/embed-2/"),
        "required/command:recall",
    ),
    "a lock that nobody holds stops its own snapshots": Fault(
        "A11",
        AGENT_ZERO,
        "touch /a0/usr/.time_travel/lock",
        "required/command:own snapshot",
    ),
    "it edits its own code until it is dead": Fault(
        "A8",
        AGENT_ZERO,
        "echo 'def broken(:' >> /a0/agent_zero.py && systemctl restart --no-block agent-zero",
        "required/turn:new",
    ),
    "its data is lost when the machine starts again": Fault(
        "A9",
        AGENT_ZERO_BOOTED,
        "cp -a /a0/usr /run/a0 && rm -r /a0/usr && ln -s /run/a0 /a0/usr",
        "required/file:/a0/usr/settings.json",
    ),
    "it starts, and fails at the first message": Fault(
        "H12",
        OPENCLAW,
        edited(
            "/usr/lib/node_modules/openclaw/fake_agent.py",
            's/return self.turn(text, "channel")/raise RuntimeError("broken")/',
        )
        + " && systemctl restart openclaw-gateway",
        "required/turn:message",
    ),
    "the log of the database is unlinked under its writer": Fault(
        "H9",
        OPENCLAW,
        f"rm {C}/state/openclaw.sqlite-wal",
        f"required/sqlite:{C}/state/openclaw.sqlite",
    ),
    "an update of a plugin logs a channel out": Fault(
        "O8",
        OPENCLAW,
        edited(f"{C}/credentials/whatsapp/creds.json", "s/true/false/"),
        "required/command:whatsapp",
    ),
    "the gateway stays stopped, and may not be started": Fault(
        "O5",
        OPENCLAW,
        "systemctl stop openclaw-gateway && rm /etc/systemd/system/openclaw-gateway.service"
        " && systemctl mask --quiet openclaw-gateway",
        "required/service:openclaw-gateway",
    ),
    "a repair overwrites a good configuration": Fault(
        "O3",
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
        "it waits for ever for a gateway that its own file of another machine names",
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
        "a lock that nobody holds stops its own snapshots",
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

REPORTS = {
    "H1": "Hermes Agent: all tools are gone after a migration",
    "H2": "Hermes Agent: the scheduled jobs are emptied or overwritten",
    "H5": "Hermes Agent: jobs stop firing after another model was chosen",
    "H6": "Hermes Agent: keys are stripped from the environment file",
    "H7": "Hermes Agent: the database is damaged, and its repair fills the disk",
    "H9": "Hermes Agent: the database's log is unlinked under its writer",
    "H11": "Hermes Agent: the gateway is started again and again",
    "H12": "Hermes Agent: it fails at the first message",
    "H13": "Hermes Agent: dependencies in the wrong environment",
    "H14": "Hermes Agent: power fails in the middle of an update",
    "H15": "Hermes Agent: an update never ends",
    "H17": "Hermes Agent: model and provider do not fit",
    "H19": "Hermes Agent: skills are deleted, without any update",
    "H21": "Hermes Agent: a tool server is away, and it improvises",
    "H22": "Hermes Agent: a restore overwrites the live home, and starts a second gateway",
    "H23": "Hermes Agent: a backup without the database, since /tmp was full",
    "H24": "Hermes Agent: a database copied file by file while it was written",
    "H25": "Hermes Agent: a copied sign-in is revoked",
    "H26": "Hermes Agent: another machine's runtime files keep it starting; two writers in one home",
    "A1": "Agent Zero: backups of more than 1.3 GB do not restore",
    "A2": "Agent Zero: knowledge and settings are missing after a restore",
    "A4": "Agent Zero: another embedding model cannot read the memory",
    "A6": "Agent Zero: it loops over a simple word",
    "A8": "Agent Zero: it edits its own code until it is dead",
    "A9": "Agent Zero: files are lost at the next boot",
    "A11": "Agent Zero: a stale lock stops its own snapshots for days",
    "A12": "Agent Zero: a user stays on an old version for fear of updating",
    "O3": "OpenClaw: a repair overwrites a good configuration",
    "O5": "OpenClaw: a failed update leaves the gateway stopped",
    "O6": "OpenClaw: messages are sent again after a restart",
    "O8": "OpenClaw: an update of a plugin logs a channel out",
}
"""Reports of what broke real agents, by code."""
KEPT_OUT = {
    "H22": "test_a_way_back_is_whole_and_a_copy_touches_nothing_of_the_original",
    "H23": "test_a_way_back_is_whole_and_a_copy_touches_nothing_of_the_original",
    "H24": "test_a_way_back_is_whole_and_a_copy_touches_nothing_of_the_original",
}
"""Reports whose fault a snapshot cannot have, and the test that shows it."""
NOT_TRIED = {
    "A1": "its fault is the size: gigabytes of an agent take too long here; drills try it at the real size",
    "H25": "a rollback does not cover it: it takes a provider that renews tokens",
    "O6": "a rollback does not cover it: only who sees what goes out can hold it back",
    "A12": "nothing breaks in it: it is the reason for all of this",
}
"""Reports of which nothing is done here, and why; docs/reference/faults.md says so."""
