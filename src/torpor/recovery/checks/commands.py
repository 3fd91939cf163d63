"""What a command that ended gives to compare."""

from __future__ import annotations

from torpor.recovery.checks.clean import clean_output
from torpor.recovery.checks.facts import Facts
from torpor.recovery.checks.matchers import Output
from torpor.recovery.checks.probe import Ran


def command_facts(ran: Ran) -> Facts:
    """Return the attributes of a command that ended."""
    return Facts(
        values={
            "exit-status": ran.exit_code,
            "stdout": Output(ran.stdout.decode("utf-8", "replace"), is_cut=ran.stdout_is_cut),
            "stderr": Output(ran.stderr.decode("utf-8", "replace"), is_cut=ran.stderr_is_cut),
        },
        output=clean_output(ran.stdout, ran.stderr),
    )
