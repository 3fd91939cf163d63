"""/metrics: figures for Prometheus."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from torpor.server.metrics import Metrics
from torpor.server.routes.deps import FAILURES, streams

router = APIRouter(tags=["system"], responses=FAILURES)


@router.get(
    "/metrics", response_class=Response, responses=streams("text/plain", "Prometheus' text form.")
)
async def get_metrics(request: Request) -> Response:
    """Return figures of the whole host: states, counts, durations, requests by route."""
    found = cast(Metrics, request.app.state.metrics)
    return Response(await found.text(request.app.state.engine), media_type=CONTENT_TYPE_LATEST)
