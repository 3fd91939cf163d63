"""The synchronous face of `AsyncChecks`; `torpor.sdk.checks` says more of each call."""

from __future__ import annotations

from collections.abc import Callable

from torpor.model_checks import CheckReport, CheckResult
from torpor.sdk.checks_file import Checks as ChecksFile
from torpor.sdk.dual import dual
from torpor.sdk.loop import loop_thread
from torpor.sdk.sync_handle import Handle


class Checks(Handle):
    """The part of `Sandbox` about checks. All of it also works on the class with an id."""

    @dual
    def check(
        self,
        checks: ChecksFile,
        *,
        profile: str | None = None,
        baseline: str | None = None,
        within_seconds: float = 3600,
        on_result: Callable[[CheckResult], object] | None = None,
    ) -> CheckReport:
        """Run checks in the machine and return the report; a verdict of `fail` is returned, not raised.

        Raises:
            InvalidRequest: the file is malformed; the message begins with its name, line and column.
            NotFound: there is no such file or sandbox.
            WrongState: the sandbox is not running and cannot be woken.
        """
        return loop_thread.run(
            self._sandbox.check(
                checks,
                profile=profile,
                baseline=baseline,
                within_seconds=within_seconds,
                on_result=on_result,
            )
        )

    @dual
    def check_init(self, *, profile: str | None = None) -> str:
        """Return the text of a first checks file, written from what the machine is like now, which it passes.

        Raises:
            InvalidRequest: nothing in the machine can be checked, or it has no Python.
        """
        return loop_thread.run(self._sandbox.check_init(profile=profile))
