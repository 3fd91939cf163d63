"""`torpor demo`: the main job on real input, step by step, with the time each step took."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from torpor.base.units import format_bytes, format_seconds
from torpor.cli.output import AsJson, print_json, print_table, visible
from torpor.errors import HostNotReady, TorporError

if TYPE_CHECKING:
    from torpor import Sandbox

T = TypeVar("T")

_TREE = "/workspace/source"
_RESULT = "/workspace/test-result.txt"

_COMMIT = """
git init -q -b main .
git add -A
git -c user.name=demo -c user.email=demo@sandbox.invalid commit -q -m 'The tree as it was brought here'
git log --oneline --stat | tail -1
"""

_TEST = f"""
export PYTHONPATH=src:.
for tests in tests/stdlib tests test .; do
    if [ -d "$tests" ] && find "$tests" -maxdepth 1 -name 'test*.py' | grep -q .; then break; fi
done
{{ timeout 600 python3 -m unittest discover -v -s "$tests" -t . 2>&1; echo $? >/tmp/status; }} | tee {_RESULT}
exit "$(cat /tmp/status)"
"""
"""Runs the tree's tests with what Python has itself; the first folder that has any."""

_NO_TESTS = 5
"""What unittest ends with when it finds no test."""

_COUNTER = "i=0; while :; do i=$((i+1)); echo $i > /dev/shm/next; mv /dev/shm/next /dev/shm/counter; sleep 0.1; done"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done."""

    what: str
    found: str
    seconds: float


@dataclass(slots=True)
class Story:
    """What was done so far; says each step as it begins."""

    quiet: bool
    steps: list[Step] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    """The sandboxes that were made."""

    def do(self, what: str, act: Callable[[], T], say: Callable[[T], str] = str) -> T:
        """Do one step and note how long it took."""
        self.tell(f"{what} ...")
        begun = time.monotonic()
        value = act()
        step = Step(what, visible(say(value)), time.monotonic() - begun)
        self.steps.append(step)
        self.tell(f"    {step.found}  ({format_seconds(step.seconds)})")
        return value

    def tell(self, text: str) -> None:
        """Say something on stderr, unless only the result is wanted."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


def demo(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", help="A source tree; default: this project's own."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Do not delete the sandboxes at the end.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Do the main job on a real source tree: build, test, snapshot, break, roll back, fork, sleep and wake.

    Everything happens in microVMs on this host, nothing needs the internet but the package mirrors, and the
    tree itself is only read.
    """
    from torpor.cli.demo_source import default_source

    _check_host()
    story = Story(quiet=as_json)
    _template(story)
    made: list[Sandbox] = []
    try:
        _play(story, (path or default_source()).resolve(), made)
    finally:
        if not keep:
            for sandbox in made:
                sandbox.delete()
            _forget_snapshots(story)
    if as_json:
        print_json({"steps": story.steps})
    else:
        print_table(
            ("STEP", "RESULT", "TIME"),
            [(s.what, s.found, format_seconds(s.seconds)) for s in story.steps],
            empty="nothing was done",
        )


def _check_host() -> None:
    """Raise `HostNotReady`, naming all that is missing and how to get it."""
    from torpor.base.home import Home
    from torpor.doctor import collect_now

    found: dict[str, Any] = collect_now(Home.default())
    missing = [check for check in found["checks"] if check["status"] == "missing"]
    if missing:
        raise HostNotReady(
            "this host lacks: " + "; ".join(f"{c['name']} ({c['why']})" for c in missing),
            hint="\n      ".join(str(c["fix"]) for c in missing if c.get("fix")),
        )


def _template(story: Story) -> None:
    from torpor.cli.templates import build_progress
    from torpor.sdk.sync_templates import Templates

    def act() -> Any:
        with build_progress() as progress:
            return Templates.build("base", progress=progress)

    story.do("have the template", act, lambda t: f"{t.name}, {format_bytes(t.size_bytes)}")


def _play(story: Story, source: Path, made: list[Sandbox]) -> None:
    from torpor import Sandbox

    def create() -> Sandbox:
        sandbox = Sandbox.create(
            template="base", ttl_seconds=3600, metadata={"made-by": "torpor demo"}
        )
        made.append(sandbox)
        story.ids.add(sandbox.id)
        return sandbox

    sandbox = story.do(
        "create a sandbox", create, lambda s: f"{s.id}, {s.info.boot_mode} in {s.info.boot_ms} ms"
    )
    _main_job(story, source, sandbox)
    _there_and_back(story, sandbox, made)
    story.do("delete", lambda: [s.delete() for s in made], lambda gone: f"{len(gone)} sandboxes")
    made.clear()


def _forget_snapshots(story: Story) -> None:
    from torpor import Snapshot

    for sandbox_id in story.ids:
        for snapshot in Snapshot.list(sandbox_id=sandbox_id):
            snapshot.delete()


def _main_job(story: Story, source: Path, sandbox: Sandbox) -> None:
    """Bring a tree in, commit it, run its tests, bring the result out."""
    from torpor.cli.demo_source import stage

    with tempfile.TemporaryDirectory(prefix="torpor-demo.") as name:
        staged = Path(name) / "source"
        staged.mkdir()
        count, size = stage(source, staged)
        story.do(
            f"copy {source.name or source} in",
            lambda: sandbox.filesystem.upload(staged, _TREE),
            lambda _: f"{count} files, {format_bytes(size)}",
        )
        story.do(
            "commit it with git inside",
            lambda: sandbox.exec(_COMMIT, cwd=_TREE, timeout_seconds=300, check=True),
            lambda r: r.stdout.strip(),
        )
        story.do("run its tests inside", lambda: _run_tests(story, sandbox))
        out = Path(name) / "result.txt"
        story.do(
            "copy the result out",
            lambda: sandbox.filesystem.download(_RESULT, out),
            lambda _: f"{len(out.read_text(errors='replace').splitlines())} lines",
        )


def _run_tests(story: Story, sandbox: Sandbox) -> str:
    """Run the tree's tests with their output streamed; return their last line."""
    show = (
        (lambda text: print(visible(text, keep_lines=True), end="", file=sys.stderr))
        if not story.quiet
        else None
    )
    result = sandbox.exec(_TEST, cwd=_TREE, timeout_seconds=700, on_stdout=show)
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    if result.exit_code == _NO_TESTS:
        return "the tree has no tests that Python can run by itself"
    ran = next((line for line in reversed(lines) if line.startswith("Ran ")), "")
    return f"{ran}: {lines[-1] if lines else 'no output'}"


def _there_and_back(story: Story, sandbox: Sandbox, made: list[Sandbox]) -> None:
    """Break the machine and take it back; go three ways and keep one; put it down and pick it up."""
    from torpor import Sandbox

    sandbox.exec(f"nohup sh -c '{_COUNTER}' >/dev/null 2>&1 &", check=True)
    story.do("start a counter", lambda: _count(sandbox), lambda n: f"at {n}")
    checkpoint = story.do(
        "snapshot",
        lambda: sandbox.snapshot(label="before the accident"),
        lambda s: f"{format_bytes(s.size_bytes)}, paused {s.pause_ms:.0f} ms",
    )
    story.do(
        "rm -rf, on purpose",
        lambda: sandbox.exec(
            "rm -rf /workspace /usr/bin/git; ls /workspace 2>&1 | head -1; true"
        ).stdout.strip(),
    )
    story.do("roll back", lambda: sandbox.rollback(checkpoint.id), lambda _: _state(sandbox))
    forks = story.do(
        "fork three ways",
        lambda: [f for f in sandbox.fork(count=3) if not isinstance(f, TorporError)],
        lambda f: f"{len(f)} forks, each with its own identity",
    )
    made.extend(forks)
    story.ids |= {fork.id for fork in forks}
    story.do("try another way in each", lambda: _try_out(forks), lambda r: ", ".join(r))
    winner: Sandbox = forks[-1] if forks else sandbox
    losers = [f for f in forks if f is not winner]
    story.do(
        "keep the winner",
        lambda: [f.delete() for f in losers],
        lambda gone: f"{winner.id}, {len(gone)} deleted",
    )
    for loser in losers:
        made.remove(loser)
    before = story.do(
        "hibernate it",
        lambda: (_count(winner), winner.hibernate())[0],
        lambda n: f"at {n}, no CPU, no RAM",
    )
    story.do("wake it", lambda: Sandbox.get(winner.id).wake(), lambda _: _state(winner))
    story.do(
        "still counting",
        lambda: _count(winner),
        lambda n: f"at {n}" if n >= before else f"it went back to {n}!",
    )


def _try_out(forks: list[Sandbox]) -> list[str]:
    results = []
    for number, fork in enumerate(forks, 1):
        fork.filesystem.write("/workspace/strategy", f"way {number}\n")
        results.append(fork.filesystem.read_text("/workspace/strategy").strip())
    return results


def _state(sandbox: Sandbox) -> str:
    tree = sandbox.exec("git log --oneline | wc -l", cwd=_TREE).stdout.strip()
    info = sandbox.refresh()
    return (
        f"{info.boot_mode} in {info.boot_ms} ms; {tree} commit there; counter at {_count(sandbox)}"
    )


def _count(sandbox: Sandbox) -> int:
    return int(
        sandbox.exec(
            "until [ -s /dev/shm/counter ]; do sleep 0.1; done; cat /dev/shm/counter"
        ).stdout
        or 0
    )
