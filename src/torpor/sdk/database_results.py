"""Databases as JSON has them, made into values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from torpor.model_databases import (
    DatabaseAttachment,
    DatabaseId,
    DatabaseInfo,
    DatabaseSnapshot,
    DatabaseState,
    DatabaseStep,
)

LIFE_LIMIT_S = 3600.0
"""Seconds for a call that waits for a machine; a long log takes long to replay."""


def database_info(body: Mapping[str, Any]) -> DatabaseInfo:
    """Return the database in `body`."""
    since = body["recoverable_from"]
    return DatabaseInfo(
        id=DatabaseId(body["id"]),
        name=body["name"],
        state=DatabaseState(body["state"]),
        created_at=datetime.fromisoformat(body["created_at"]),
        size_bytes=body["size_bytes"],
        ram_mib=body["ram_mib"],
        vcpus=body["vcpus"],
        idle_seconds=body["idle_seconds"],
        sandbox_id=body["sandbox_id"],
        volume_id=body["volume_id"],
        port=body["port"],
        server_version=body["server_version"],
        parent=body["parent"],
        recoverable_from=None if since is None else datetime.fromisoformat(since),
        attachments=tuple(
            DatabaseAttachment(sandbox_id=a["sandbox_id"], port=a["port"])
            for a in body["attachments"]
        ),
        database=body["database"],
        username=body["username"],
        host=body["host"],
    )


def database_step(body: Mapping[str, Any]) -> DatabaseStep:
    """Return the step in `body`."""
    return DatabaseStep(body["step"], body["message"])


def database_snapshot(body: Mapping[str, Any]) -> DatabaseSnapshot:
    """Return the database's snapshot in `body`."""
    return DatabaseSnapshot(
        id=body["id"], label=body["label"], at=datetime.fromisoformat(body["at"]), wal_file=""
    )
