"""`BuildDesk`: template builds that clients ask for and come back to; each is a folder, so a daemon's end loses none.

A build's folder has `build.json` (what is so about it), `log` (its lines) and, until it has ended, the recipe and the
root file system. A build that a daemon leaves in the middle is `failed` for the next one, and says why.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from torpor.base.aio import Supervisor, closing
from torpor.base.clock import Clock, SystemClock
from torpor.base.fsio import make_private_dir, read_json, remove_tree, write_json
from torpor.base.home import Home
from torpor.base.ids import new_id
from torpor.errors import RateLimited, TorporError
from torpor.model import BuildEvent
from torpor.sandboxes.port import EnginePort
from torpor.server.compat.lookup import no_build

log = logging.getLogger(__name__)

KEPT_MOST = 200
"""Builds that are remembered, the newest."""
OPEN_MOST = 8
"""Builds that may wait or go on at one time."""
ROOTFS, RECIPE = "rootfs.tar", "recipe.toml"
DOCKERFILE, CONTEXT = "Dockerfile", "context"
"""A Dockerfile lies beside its context, which may have a file of that name."""

_OPEN = frozenset({"queued", "building", "baking"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What is so about one build."""

    id: str
    name: str
    workspace: str
    status: str
    """`queued`, `building`, `baking` (its first snapshot is taken), `done` or `failed`."""
    error: str | None
    started_at: str
    ended_at: str | None
    size_mb: int
    bytes: int
    """Of the files that were sent."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in _OPEN


_BUILD = TypeAdapter(Build)


class BuildDesk:
    """Carries builds out, one at a time."""

    def __init__(self, home: Home, engine: EnginePort, *, clock: Clock | None = None) -> None:
        self._folder = home.builds
        self._engine = engine
        self._clock = clock or SystemClock()
        self._builds: dict[str, Build] = {}
        self._turn = asyncio.Lock()
        self._more = asyncio.Event()
        self._tasks = Supervisor(lambda name, error: log.error("%s failed", name, exc_info=error))

    async def start(self) -> None:
        """Read what earlier daemons left; what they did not end has failed."""
        for build in await asyncio.to_thread(self._read):
            self._builds[build.id] = build
            if build.is_open:
                await self._end(build, "the daemon ended before the build did; send it again")

    async def aclose(self) -> None:
        """Stop; what is under way has failed for the next daemon."""
        await self._tasks.aclose(within_s=120)

    async def open_folder(self) -> tuple[str, Path]:
        """Return a fresh build's id and folder, for its root file system to be put into.

        Raises:
            RateLimited: too many are under way.
        """
        if sum(build.is_open for build in self._builds.values()) >= OPEN_MOST:
            raise RateLimited(
                f"{OPEN_MOST} template builds are under way",
                hint="wait for one of them to end",
                retry_after_seconds=30,
            )
        build_id = new_id("bld")
        folder = self._folder / build_id
        await asyncio.to_thread(_make, self._folder, folder)
        return build_id, folder

    async def drop_folder(self, build_id: str) -> None:
        """Remove the folder of a build that is not begun."""
        await asyncio.to_thread(remove_tree, self._folder / build_id)

    async def begin(
        self,
        build_id: str,
        name: str,
        *,
        workspace: str,
        size_mb: int,
        size_bytes: int,
        image: str | None = None,
    ) -> Build:
        """Begin the build of what is in its folder, or of a registry's image, and return at once."""
        build = Build(
            id=build_id,
            name=name,
            workspace=workspace,
            status="queued",
            error=None,
            started_at=self._clock.now().isoformat(),
            ended_at=None,
            size_mb=size_mb,
            bytes=size_bytes,
        )
        await asyncio.to_thread(_write_recipe, self._folder / build_id, name, size_mb, image)
        await self._save(build)
        self._tasks.launch(self._run(build), name=f"build {build.id}")
        return build

    def all(self, workspace: str | None) -> list[Build]:
        """Return the builds of a workspace, or (None) of all, the newest first."""
        found = [b for b in self._builds.values() if workspace in (None, b.workspace)]
        return sorted(found, key=lambda build: (build.started_at, build.id), reverse=True)

    def get(self, build_id: str, workspace: str | None) -> Build:
        """Return one build. Raises `NotFound`."""
        build = self._builds.get(build_id)
        if build is None or workspace not in (None, build.workspace):
            raise no_build(build_id)
        return build

    async def lines(self, build_id: str, *, follow: bool) -> AsyncIterator[str]:
        """Yield the lines of a build's log; with `follow`, until it has ended."""
        seen = 0
        while True:
            more, is_open = self._more, self._builds[build_id].is_open
            lines = await asyncio.to_thread(_lines, self._folder / build_id / "log")
            for line in lines[seen:]:
                yield line
            seen = len(lines)
            if not (follow and is_open):
                return
            await more.wait()

    # ---- inside ----

    async def _run(self, build: Build) -> None:
        try:
            async with self._turn:
                build = await self._save(replace(build, status="building"))
                events = self._engine.build_template(self._folder / build.id / RECIPE)
                async with closing(events) as steps:
                    async for step in steps:
                        build = await self._step(build, step)
        except TorporError as error:
            hint = f" ({error.hint})" if error.hint else ""
            tail = str(error.facts.get("log") or "").splitlines()
            # what was sent has names of its own; where it lies here is nobody's business
            message = error.message.replace(f"{self._folder / build.id}/", "")
            await self._say(build, *(f"| {line}" for line in tail), f"failed: {message}")
            await self._end(build, message + hint)
        except Exception:
            log.exception("build %s failed", build.id)
            await self._end(build, "the daemon failed; its log has the details")
        else:
            await self._end(build, None)

    async def _step(self, build: Build, step: BuildEvent) -> Build:
        await self._say(build, f"{step.step}: {step.message}")
        if step.step == "snapshot" and build.status != "baking":
            return await self._save(replace(build, status="baking"))
        return build

    async def _end(self, build: Build, error: str | None) -> None:
        """Note that a build has ended, and remove what it was made from."""
        ended = replace(
            build,
            status="done" if error is None else "failed",
            error=error,
            ended_at=self._clock.now().isoformat(),
        )
        await self._save(ended)
        await asyncio.to_thread(_tidy, self._folder / build.id)
        for old in self.all(None)[KEPT_MOST:]:
            if not old.is_open:
                del self._builds[old.id]
                await asyncio.to_thread(remove_tree, self._folder / old.id)

    async def _save(self, build: Build) -> Build:
        await asyncio.to_thread(write_json, self._folder / build.id / "build.json", asdict(build))
        self._builds[build.id] = build
        self._tell()
        return build

    async def _say(self, build: Build, *lines: str) -> None:
        await asyncio.to_thread(_append, self._folder / build.id / "log", lines)
        self._tell()

    def _tell(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    def _read(self) -> list[Build]:
        """Return the builds on disk; what has no record was never begun and is removed. Blocks."""
        found = []
        for folder in self._folder.glob("bld_*") if self._folder.is_dir() else ():
            try:
                found.append(_BUILD.validate_python(read_json(folder / "build.json")))
            except (TorporError, OSError, ValueError) as exc:
                log.warning("build %s is removed: %s", folder.name, exc)
                remove_tree(folder)
        return found


def _write_recipe(folder: Path, name: str, size_mb: int, image: str | None) -> None:
    """Write the recipe of what was sent; a Dockerfile's disk is as large as that of what it builds on."""
    disk = f"disk_gib = {max(1, -(-size_mb // 1024))}"
    if image is not None:
        lines = [f"image = {json.dumps(image)}", disk]
    elif (folder / DOCKERFILE).exists():
        lines = [f'dockerfile = "{DOCKERFILE}"', f'context = "{CONTEXT}"']
    else:
        lines = [f'rootfs = "{ROOTFS}"', disk]
    (folder / RECIPE).write_text("\n".join((f'name = "{name}"', *lines)) + "\n", "utf-8")


def _make(parent: Path, folder: Path) -> None:
    make_private_dir(parent)
    make_private_dir(folder)


def _tidy(folder: Path) -> None:
    for name in (ROOTFS, RECIPE, DOCKERFILE):
        (folder / name).unlink(missing_ok=True)
    remove_tree(folder / CONTEXT)


def _append(path: Path, lines: tuple[str, ...]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    return [str(json.loads(line)) for line in text.splitlines() if line.endswith('"')]
