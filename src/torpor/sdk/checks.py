"""What an asynchronous sandbox can be asked about its health."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torpor.base.aio import closing
from torpor.errors import InvalidRequest, NotFound, TorporError, error_from_wire
from torpor.model_checks import CheckReport, CheckResult
from torpor.sdk.client import raw_bytes
from torpor.sdk.dual import dual
from torpor.sdk.handle import AsyncHandle
from torpor.sdk.sse import sse_events

Checks = str | Path | Mapping[str, Any]
"""A checks file: its path (a `Path`, or text on one line that ends in .yaml, .yml or .json), its text, or what it holds."""

INIT_LIMIT_S = 600.0
"""Seconds to look a machine through; without hardware virtualisation it can take minutes."""

_FILE_BYTES_MOST = 1 << 20


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


def read_checks(checks: Checks) -> tuple[str, str]:
    """Return the text of a checks file and its name. Reads files; for a thread.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it is no text, or too large.
    """
    if isinstance(checks, Mapping):
        return _as_yaml(checks), "checks"
    is_path = isinstance(checks, Path) or (
        "\n" not in checks and checks.endswith((".yaml", ".yml", ".json"))
    )
    if not is_path:
        return str(checks), "checks"
    path = Path(checks)
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MOST + 1)
        text = data.decode("utf-8")
    except FileNotFoundError as exc:
        raise NotFound(
            f"there is no checks file {path}", hint="`torpor check init SANDBOX -o FILE` writes one"
        ) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"the checks file {path} cannot be read: {exc}") from exc
    if len(data) > _FILE_BYTES_MOST:
        raise InvalidRequest(f"the checks file {path} is over {_FILE_BYTES_MOST} bytes")
    printable = "".join(char if char.isprintable() else "?" for char in path.name)
    return text, printable[:200] or "checks"


def _as_yaml(checks: Mapping[str, Any]) -> str:
    import yaml

    try:
        return yaml.safe_dump(_plain(checks), sort_keys=False, allow_unicode=False)
    except yaml.YAMLError as exc:
        raise InvalidRequest(
            f"checks hold something that no checks file can: {' '.join(str(exc).split())}",
            hint="mappings, lists, texts, numbers, truth values",
        ) from exc


def _plain(value: Any) -> Any:
    """Return `value` of dicts and lists alone, none of them twice: YAML would write an alias for the second."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
