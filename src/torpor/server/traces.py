"""Sending traces where the standard variables of OpenTelemetry say."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torpor import __version__
from torpor.base import tracing
from torpor.errors import HostNotReady

log = logging.getLogger(__name__)

_WANTED_BY = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def start_traces(environ: Mapping[str, str]) -> None:
    """Begin to send traces if the environment names an endpoint, or `OTEL_TRACES_EXPORTER=console`.

    Raises:
        HostNotReady: they are wanted, and the extra is not installed.
    """
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    if exporter == "none" or not (exporter or any(environ.get(name) for name in _WANTED_BY)):
        return
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            ConsoleSpanExporter,
            SpanExporter,
        )

        sink: SpanExporter
        if exporter == "console":
            sink = ConsoleSpanExporter()
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            sink = OTLPSpanExporter()
    except ImportError as exc:
        raise HostNotReady(
            f"traces are wanted, but {exc.name} is not installed",
            hint="pip install 'torpor[otel]', or unset OTEL_EXPORTER_OTLP_ENDPOINT",
        ) from exc
    resource = Resource.create({"service.name": "torpor", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(sink))
    tracing.enable(provider.get_tracer("torpor", __version__))
    log.info("traces are sent")
