"""`AsyncDrill`: a proof that a snapshot can be restored, as an object."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from torpor.errors import CheckInconclusive, DaemonUnreachable, DrillFailed, OperationTimeout
from torpor.model import MemoryChoice
from torpor.model_checks import Verdict
from torpor.model_drills import DrillId, DrillInfo, ScheduleInfo
from torpor.sdk.change_results import checks_text, profile_text, who
from torpor.sdk.checks_file import Checks
from torpor.sdk.client import Client, Connection, connection, quote_part, resolved

Progress = Callable[[DrillInfo], object]
"""Called with the drill whenever there are news of it."""

_NEWS_S = 30.0
_RETRY_S = 1.0
_GIVES_UP_S = 300.0
"""A daemon that is being restarted is asked again for so long."""
_PASSING = (DaemonUnreachable, OperationTimeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillOptions:
    """Everything that a drill takes."""

    checks: Checks | None = None
    profile: str | Path | None = None
    boots: Sequence[MemoryChoice] = ("ram", "cold")
    limit_seconds: float = 3600.0
    author: str | None = field(default=None)

    def body(self) -> dict[str, Any]:
        """Return the request. Reads files; raises `InvalidRequest` when one cannot be read."""
        text, source = checks_text(self.checks)
        return {
            "checks": text,
            "checks_source": source,
            "profile": profile_text(self.profile),
            "boots": list(self.boots),
            "limit_seconds": self.limit_seconds,
            "author": who() if self.author is None else self.author,
        }


class AsyncDrill:
    """One drill. Made by `AsyncSandbox.drill`, `AsyncSnapshot.drill`, `get` or `list`."""

    def __init__(self, info: DrillInfo, client: Client | None = None) -> None:
        self._info = info
        self._client = resolved(client)
        self._evidence: Mapping[str, Any] | None = None
        self._text = ""

    @classmethod
    async def get(cls, drill_id: str, *, client: Client | None = None) -> Self:
        """Return the drill with that id, with its evidence when it is over. Raises `NotFound`."""
        body = await connection(client).call("GET", f"/v1/drills/{quote_part(drill_id)}")
        found = cls(DrillInfo.from_json(body), client)
        await found._fetch()
        return found

    @classmethod
    async def list(
        cls, target: str | None = None, *, limit: int = 100, client: Client | None = None
    ) -> builtins.list[Self]:
        """Return drills, newest first: all, or those of one sandbox or snapshot, by id."""
        query = {"target": target, "limit": limit}
        body = await connection(client).call("GET", "/v1/drills", query=query)
        return [cls(DrillInfo.from_json(item), client) for item in body["drills"]]

    @classmethod
    async def schedules(cls, *, client: Client | None = None) -> builtins.list[ScheduleInfo]:
        """Return the schedules that begin drills, the one that comes first first."""
        body = await connection(client).call("GET", "/v1/drill-schedules")
        return [ScheduleInfo.from_json(item) for item in body["schedules"]]

    @classmethod
    async def unschedule(cls, schedule_id: str, *, client: Client | None = None) -> ScheduleInfo:
        """Begin no more drills by a schedule, and return it. Raises `NotFound`."""
        path = f"/v1/drill-schedules/{quote_part(schedule_id)}"
        return ScheduleInfo.from_json(await connection(client).call("DELETE", path))

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.verdict or self._info.step}>"

    @property
    def info(self) -> DrillInfo:
        """What was so when the daemon was last heard of."""
        return self._info

    @property
    def id(self) -> DrillId:
        """The drill's id, `drl_…`."""
        return self._info.id

    @property
    def verdict(self) -> Verdict | None:
        """`pass`, `fail` or `inconclusive`; None while it goes on."""
        return self._info.verdict

    @property
    def sentence(self) -> str:
        """The verdict in one sentence; empty while it goes on."""
        return self._info.sentence

    @property
    def evidence(self) -> Mapping[str, Any] | None:
        """All that was found, as it is kept; None while it goes on. docs/reference/drills.md has the fields."""
        return self._evidence

    @property
    def text(self) -> str:
        """The evidence as text; empty while it goes on."""
        return self._text

    @property
    def points(self) -> Mapping[str, str]:
        """What came of each of the six points, by name: `pass`, `fail`, `inconclusive` or `nothing`."""
        found = self._evidence or {"points": []}
        return {point["name"]: point["outcome"] for point in found["points"]}

    async def wait(self, progress: Progress | None = None) -> Self:
        """Return when it is over. A caller that goes away ends nothing: it goes on in the daemon."""
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + _GIVES_UP_S
        while self._info.is_open:
            if progress is not None:
                progress(self._info)
            query = {"wait_seconds": _NEWS_S}
            try:
                body = await self._connection.call(
                    "GET", self._path, query=query, limit_s=2 * _NEWS_S
                )
            except _PASSING:
                if loop.time() > gives_up_at:
                    raise
                await asyncio.sleep(_RETRY_S)
                continue
            gives_up_at = loop.time() + _GIVES_UP_S
            self._info = DrillInfo.from_json(body)
        if progress is not None:
            progress(self._info)
        await self._fetch()
        return self

    def check(self) -> Self:
        """Return this drill if it passed.

        Raises:
            DrillFailed: the snapshot does not come back as it should.
            CheckInconclusive: it could not be told.
        """
        facts = {"drill_id": self.id, "snapshot_id": self._info.snapshot_id}
        hint = f"see torpor drill show {self.id}"
        if self.verdict == "fail":
            raise DrillFailed(f"drill {self.id}: {self.sentence}", hint=hint, **facts)
        if self.verdict != "pass":
            said = self.sentence or "it is not over"
            raise CheckInconclusive(f"drill {self.id}: {said}", hint=hint, **facts)
        return self

    async def _fetch(self) -> None:
        if self._info.is_open:
            return
        path = f"{self._path}/evidence"
        self._evidence = await self._connection.call("GET", path)
        async with self._connection.stream("GET", path, query={"format": "text"}) as reply:
            self._text = (await reply.aread()).decode("utf-8", "replace")

    @property
    def _connection(self) -> Connection:
        return connection(self._client)

    @property
    def _path(self) -> str:
        return f"/v1/drills/{quote_part(self.id)}"


async def begin_drill(
    path: str, options: DrillOptions, *, client: Client | None = None
) -> AsyncDrill:
    """Begin a drill of what lies at `path` of the REST API, and return it."""
    body = await asyncio.to_thread(options.body)
    found = await connection(client).call("POST", f"{path}/drills", body=body)
    return AsyncDrill(DrillInfo.from_json(found), client)


async def schedule_drills(
    path: str, schedule: str, options: DrillOptions, *, client: Client | None = None
) -> ScheduleInfo:
    """Begin drills of what lies at `path` again and again; return the schedule."""
    body = {**await asyncio.to_thread(options.body), "schedule": schedule}
    found = await connection(client).call("POST", f"{path}/drill-schedules", body=body)
    return ScheduleInfo.from_json(found)
