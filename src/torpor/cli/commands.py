"""Every command of `torpor`: where it is, and its one line of help. Modules are imported when they are run.

To add a command, add a line: `module` has an attribute `function`, either a function that Typer can
take or a `typer.Typer` of its own with sub-commands.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is not imported yet."""

    module: str
    function: str
    help: str


COMMANDS: dict[str, Lazy] = {
    "create": Lazy("torpor.cli.sandboxes", "create", "Make a sandbox and print its id."),
    "ls": Lazy("torpor.cli.sandboxes", "ls", "List sandboxes, newest first."),
    "get": Lazy("torpor.cli.sandboxes", "get", "Show all that is so about a sandbox."),
    "usage": Lazy("torpor.cli.usage", "usage", "Say what machines take and have used."),
    "pause": Lazy("torpor.cli.sandboxes", "pause", "Stop a sandbox's CPUs; its memory stays."),
    "resume": Lazy("torpor.cli.sandboxes", "resume", "Let a paused sandbox run on."),
    "ttl": Lazy("torpor.cli.sandboxes", "ttl", "Say when a sandbox is to end."),
    "snapshot": Lazy("torpor.cli.snapshots", "app", "Take a snapshot, and look after snapshots."),
    "snapshots": Lazy("torpor.cli.snapshots", "ls", "List snapshots, newest first."),
    "quiesce": Lazy("torpor.cli.quiesce", "app", "Try the hooks that bring programs to rest."),
    "restore": Lazy("torpor.cli.moves", "restore", "Make a new sandbox from a snapshot."),
    "rollback": Lazy("torpor.cli.moves", "rollback", "Put a sandbox back to a snapshot."),
    "change": Lazy("torpor.cli.changes", "app", "Change a sandbox; verify it, or put it back."),
    "changes": Lazy("torpor.cli.changes", "changes", "List changes, newest first."),
    "confirm": Lazy("torpor.cli.changes", "confirm", "Keep a change that is on probation."),
    "report": Lazy("torpor.cli.changes", "report", "Say what became of a change, and why."),
    "drill": Lazy("torpor.cli.drills", "app", "Prove that a snapshot comes back."),
    "drills": Lazy("torpor.cli.drills", "drills", "List drills, newest first."),
    "watch": Lazy("torpor.cli.watches", "app", "Look at a sandbox again and again."),
    "fork": Lazy("torpor.cli.moves", "fork", "Make several sandboxes of one, or of a snapshot."),
    "hibernate": Lazy("torpor.cli.moves", "hibernate", "Put sandboxes to sleep: no CPU, no RAM."),
    "wake": Lazy("torpor.cli.moves", "wake", "Let hibernated sandboxes go on."),
    "tree": Lazy("torpor.cli.family", "tree", "Draw the family of snapshots and sandboxes."),
    "layers": Lazy("torpor.cli.family", "layers", "Say what takes up the disk and what frees it."),
    "diff": Lazy("torpor.cli.diff", "diff", "Say which files and packages differ."),
    "check": Lazy("torpor.cli.checks", "app", "Say whether a sandbox is well, by a checks file."),
    "inventory": Lazy(
        "torpor.cli.inventory", "app", "Say what a machine holds, and what is not as it was."
    ),
    "profile": Lazy("torpor.cli.profiles", "app", "Show agent profiles, and which one fits."),
    "idle": Lazy("torpor.cli.moves", "idle", "Say when a sandbox is to hibernate by itself."),
    "rm": Lazy("torpor.cli.sandboxes", "rm", "End and remove sandboxes."),
    "logs": Lazy("torpor.cli.sandboxes", "logs", "Print a sandbox's console log."),
    "exec": Lazy("torpor.cli.execs", "exec_command", "Run a command in a sandbox."),
    "run": Lazy("torpor.cli.code", "run", "Run code in an interpreter that keeps its state."),
    "context": Lazy("torpor.cli.code", "app", "Look after interpreters for code."),
    "shell": Lazy("torpor.cli.execs", "shell", "Open a shell in a sandbox, or run one line in it."),
    "attach": Lazy("torpor.cli.execs", "attach", "Follow a command that was started before."),
    "ps": Lazy("torpor.cli.execs", "ps", "List the processes or commands in a sandbox."),
    "ports": Lazy("torpor.cli.ports", "ports", "List what listens in a sandbox."),
    "forward": Lazy("torpor.cli.ports", "forward", "Let a local port reach one in a sandbox."),
    "preview": Lazy("torpor.cli.ports", "preview", "Print a link to a port, for a browser."),
    "cp": Lazy("torpor.cli.files", "cp", "Copy files and folders in and out of a sandbox."),
    "volume": Lazy("torpor.cli.volumes", "app", "Storage that outlives sandboxes."),
    "db": Lazy("torpor.cli.databases", "app", "PostgreSQL databases that outlive machines."),
    "template": Lazy("torpor.cli.templates", "app", "Build and look after templates."),
    "memory": Lazy("torpor.cli.memory", "app", "What agents know: look, correct, forget."),
    "doctor": Lazy("torpor.cli.system", "doctor", "Say what this host has and what is missing."),
    "host": Lazy("torpor.cli.host", "app", "Make this host ready for Firecracker."),
    "demo": Lazy(
        "torpor.cli.demo", "demo", "Do the main job on a real source tree and show the times."
    ),
    "bench": Lazy("torpor.cli.bench", "bench", "Measure Torpor beside the bare floor, here."),
    "events": Lazy("torpor.cli.events", "events", "Print every change of state as it happens."),
    "token": Lazy("torpor.cli.tokens", "app", "Make, list and remove tokens for TCP."),
    "serve": Lazy("torpor.cli.system", "serve", "Run the daemon in the foreground."),
}
