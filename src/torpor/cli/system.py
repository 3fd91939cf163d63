"""Commands on this host: what it has, and its daemon."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torpor.cli.output import AsJson, print_json, print_table
from torpor.errors import HostNotReady


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
    port: Annotated[int, typer.Option(help="TCP port, with --host; 0: any.")] = 7475,
) -> None:
    """Run the daemon in the foreground."""
    from torpor.server.daemon import main

    main([*(["--host", host, "--port", str(port)] if host else [])])
