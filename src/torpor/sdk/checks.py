"""What an asynchronous sandbox can be asked about its health."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from torpor.base.aio import closing
from torpor.errors import TorporError, error_from_wire
from torpor.model_checks import CheckReport, CheckResult
from torpor.sdk.checks_file import Checks, read_checks
from torpor.sdk.client import raw_bytes
from torpor.sdk.dual import dual
from torpor.sdk.handle import AsyncHandle
from torpor.sdk.sse import sse_events

INIT_LIMIT_S = 600.0
"""Seconds to look a machine through; without hardware virtualisation it can take minutes."""


class AsyncChecks(AsyncHandle):
    """The part of `AsyncSandbox` about checks. All of it also works on the class with an id."""

    @dual
    async def check(
        self,
        checks: Checks,
        *,
        profile: str | None = None,
        baseline: str | None = None,
        within_seconds: float = 3600,
        on_result: Callable[[CheckResult], object] | None = None,
    ) -> CheckReport:
        """Run checks in the machine and return the report; a verdict of `fail` is returned, not raised.

        A machine that sleeps is woken. When the caller goes away the run ends, and nothing of it goes on in
        the machine. docs/reference/checks.md describes the file.

        Args:
            checks: a path, the text of a checks file, or a mapping like it.
            profile: the agent's profile, for `turn` checks that do not say how to take one, and for `inventory`
                checks; None: the one that fits the machine.
            baseline: id of the snapshot that `inventory` checks compare with; None: the one that the sandbox
                last was at.
            within_seconds: for all checks; those not done by then are inconclusive.
            on_result: called with each result as it comes.

        Raises:
            InvalidRequest: the file is malformed; the message begins with its name, line and column.
            NotFound: there is no such file, sandbox or baseline.
            WrongState: the sandbox is not running and cannot be woken.
        """
        text, source = await asyncio.to_thread(read_checks, checks)
        body = {
            "checks": text,
            "source": source,
            "profile": profile,
            "baseline": baseline,
            "within_seconds": within_seconds,
        }
        path = f"{self._path}/checks/stream"
        async with (
            self._connection.stream("POST", path, body=body) as reply,
            closing(sse_events(raw_bytes(reply))) as events,
        ):
            async for event in events:
                if event.name == "error":
                    raise error_from_wire(event.data)
                if event.name == "result" and on_result is not None:
                    on_result(CheckResult.from_json(event.data))
                if event.name == "report":
                    return CheckReport.from_json(event.data)
        raise TorporError("the checks ended without a report", hint="see the daemon's log")

    @dual
    async def check_init(self, *, profile: str | None = None) -> str:
        """Return the text of a first checks file, written from what the machine is like now, which it passes.

        It knows of enabled services, listening ports, configuration files, packages and SQLite databases.

        Args:
            profile: an agent's profile, whose turn is put into the file.

        Raises:
            InvalidRequest: nothing in the machine can be checked, or it has no Python.
        """
        found = await self._connection.call(
            "POST", f"{self._path}/checks/init", body={"profile": profile}, limit_s=INIT_LIMIT_S
        )
        return str(found["checks"])
