"""A builder in a process of its own, for tests that kill it: `python -m … HOME quick|slow|children`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from tests.fakes.templates import FakeBooter, make_files
from torpor.base import proc
from torpor.base.home import Home
from torpor.templates import namespace
from torpor.templates import plan as plans
from torpor.templates.plan import BuildPlan, Step
from torpor.templates.store import TemplateStore


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main(home: Home, mode: str) -> None:
    async def bootstrap(plan: BuildPlan, work: Path, out: Path) -> AsyncGenerator[Step, None]:
        say("bootstrapping")
        yield Step("packages", "begun", 0.1)
        if mode == "slow":
            await asyncio.sleep(1.0)
        if mode == "children":
            script = 'sh -c "sleep 1000; :" "$1" & echo up; wait'
            argv = namespace.wrapped(["sh", "-c", script, "sh", f"marker={home.root}"])
            async for line in proc.stream_lines(argv, timeout_s=1000):
                say(line)
        await make_files(out)
        yield Step("image", "done", 1.0)

    agent = home.root.parent / "agent"
    plans.agent_sources = lambda: agent
    store = TemplateStore(home, FakeBooter(), bootstrap=bootstrap)
    async for event in store.build(home.root.parent / "own.toml"):
        if event.template is not None:
            say(event.template.digest)


if __name__ == "__main__":
    asyncio.run(main(Home(Path(sys.argv[1])), sys.argv[2]))
