"""A model provider for fake agents, as the world outside would answer: run beside the agent on 127.0.0.1:9999.

`GET /health`; `POST /v1/chat` with `{"model", "messages", "tools"}`. A pair of provider and model that it does not know is a 404.
While /run/fake/provider-down exists everything is a 503.
"""

from __future__ import annotations

import json
import os
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KNOWN = {"acme/large-1", "acme/large-2", "acme/embed-1", "acme/embed-2"}
DOWN = Path("/run/fake/provider-down")


class Provider(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_GET(self) -> None:
        self._answer(503 if DOWN.exists() else 200, {"status": "ok"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if DOWN.exists():
            self._answer(503, {"error": "overloaded"})
        elif asked["model"] not in KNOWN:
            self._answer(404, {"error": f"no model {asked['model']}"})
        elif any(m["role"] == "tool" for m in asked["messages"]):
            self._answer(200, {"text": "ready"})
        elif "clock" in asked["tools"]:
            self._answer(200, {"call": "clock"})
        else:
            self._answer(200, {"text": "I cannot do that without a tool."})

    def _answer(self, status: int, body: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def ready() -> None:
    """Tell systemd that it listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect(os.environ["NOTIFY_SOCKET"])
        notify.sendall(b"READY=1")


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 9999), Provider)
    ready()
    server.serve_forever()
