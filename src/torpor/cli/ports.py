"""Commands about ports: what listens in a sandbox, forwarding one, and links to previews."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Annotated

import typer

from torpor.cli.app import tell
from torpor.cli.find import SandboxArg, find
from torpor.cli.output import AsJson, as_dict, print_json, print_table
from torpor.errors import TorporError
from torpor.model_access import LINK_SECONDS_MOST

PortArg = Annotated[int, typer.Argument(metavar="PORT", help="The port in the sandbox.")]


def ports(sandbox: SandboxArg, as_json: AsJson = False) -> None:
    """List what listens for TCP connections in a sandbox."""
    found = find(sandbox).ports()
    if as_json:
        print_json([{**as_dict(info), "is_reachable": info.is_reachable} for info in found])
        return
    print_table(
        ("PORT", "ADDRESS", "PID", "PROCESS", "USER", "FORWARD"),
        [
            (
                info.port,
                info.address,
                info.pid,
                info.process,
                info.user,
                "yes" if info.is_reachable else "no: it is not on loopback",
            )
            for info in found
        ],
        empty="nothing listens",
    )


def forward(
    sandbox: SandboxArg,
    port: PortArg,
    local: Annotated[
        int | None, typer.Option("--local", "-l", help="The local port; 0: any. Default: the same.")
    ] = None,
    host: Annotated[str, typer.Option(help="The local address to listen on.")] = "127.0.0.1",
    idle: Annotated[
        int | None, typer.Option("--idle", help="Seconds of silence that end a connection.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a local port reach a port in a sandbox, until Ctrl-C.

    Each connection wakes the sandbox if it sleeps. It needs no network in the sandbox.
    """
    found = find(sandbox)
    wanted = port if local is None else local
    forwarding = found.forward(
        port, local_port=wanted, local_host=host, idle_seconds=idle, on_error=_told
    )
    with contextlib.suppress(KeyboardInterrupt), forwarding:
        if as_json:
            print_json(
                {
                    "sandbox_id": found.id,
                    "host": forwarding.host,
                    "port": forwarding.port,
                    "remote_port": port,
                }
            )
            sys.stdout.flush()
        words = f"{forwarding.address} leads to port {port} of {found.id}, until Ctrl-C"
        print(words, file=sys.stderr, flush=True)
        threading.Event().wait()


def _told(error: TorporError) -> None:
    tell(error)
    sys.stderr.flush()


def preview(
    sandbox: SandboxArg,
    port: PortArg,
    ttl: Annotated[
        int,
        typer.Option(
            "--ttl",
            metavar="<int>",
            min=1,
            max=LINK_SECONDS_MOST,
            help="Seconds until the link ends; 30 days at most.",
        ),
    ] = 3600,
    path: Annotated[str, typer.Option(help="What it opens.")] = "/",
    as_json: AsJson = False,
) -> None:
    """Print a link to a port of a sandbox, for a browser.

    Whoever has the link may use that port until it ends. The daemon has to listen on TCP: `torpor serve --host …`.
    """
    found = find(sandbox)
    url = found.preview_url(port, ttl_seconds=ttl, path=path)
    if as_json:
        print_json({"url": url, "sandbox_id": found.id, "port": port, "ttl_seconds": ttl})
        return
    print(url)
