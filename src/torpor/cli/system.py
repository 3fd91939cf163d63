"""Commands on this host: what it has, and its daemon."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torpor.cli.output import AsJson, print_json, print_table
from torpor.errors import Busy, HostNotReady, InvalidRequest
from torpor.server.listen import TCP_PORT

if TYPE_CHECKING:
    from torpor.base.home import Home


def doctor(as_json: AsJson = False) -> None:
    """Say what this host has and what is missing."""
    from torpor.base.home import Home
    from torpor.doctor import collect_now

    found: dict[str, Any] = collect_now(Home.default())
    if as_json:
        print_json(found)
    else:
        print_table(
            ("CHECK", "STATUS", "FOUND", "WHY"),
            [(c["name"], c["status"], c["found"], c["why"]) for c in found["checks"]],
            empty="nothing was checked",
        )
        for check in found["checks"]:
            if check["status"] != "ok" and check.get("fix"):
                print(f"\n{check['name']}: {check['fix']}")
    if not found["ok"]:
        raise typer.Exit(HostNotReady.exit_code)


def serve(
    host: Annotated[
        str | None, typer.Option(help="Listen on this address too; a token is needed there.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="<int>",
            min=0,
            max=65535,
            help=f"TCP port, with --host; 0: any. Default: {TCP_PORT}.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also answer to this name on TCP; with a dot: below it."),
    ] = None,
) -> None:
    """Run the daemon in the foreground, until Ctrl-C.

    When this home's daemon runs already, that one is asked to listen on TCP too, until Ctrl-C.
    """
    from torpor.base.home import Home
    from torpor.sdk.daemon import answers

    home = Home.default()
    if host is None and (port is not None or allow_host):
        raise InvalidRequest(
            "--port and --allow-host are for TCP, and there is no --host",
            hint=f"torpor serve --host 127.0.0.1 --port {TCP_PORT if port is None else port}",
        )
    if answers(home):
        if host is None:
            raise Busy(
                f"a daemon serves {home.root} already",
                hint="use it; torpor serve --host ADDRESS lets it listen on TCP too",
                home=home.root,
            )
        _ask_to_listen(home, host, TCP_PORT if port is None else port, allow_host or [])
        return
    from torpor.server.daemon import main

    argv = [] if host is None else ["--host", host]
    argv += [] if port is None else ["--port", str(port)]
    main([*argv, *(word for name in allow_host or [] for word in ("--allow-host", name))])


def _ask_to_listen(home: Home, host: str, port: int, names: list[str]) -> None:
    import asyncio

    from torpor.sdk.client import Client
    from torpor.sdk.listener import listen_until_end

    def tell(where: str, at: int) -> None:
        url = f"http://[{where}]:{at}" if ":" in where else f"http://{where}:{at}"
        print(f"the daemon of {home.root} also listens on {url}, until Ctrl-C", file=sys.stderr)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(listen_until_end(Client(home=home.root), host, port, names, tell))
