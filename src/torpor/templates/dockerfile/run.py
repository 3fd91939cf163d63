"""The steps of a Dockerfile, carried out in the machine of the template's first boot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import posixpath
import shlex
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

from torpor.base.ids import new_id
from torpor.errors import (
    BuildFailed,
    Conflict,
    GuestFailed,
    GuestUnreachable,
    InvalidRequest,
    LimitExceeded,
    NotFound,
)
from torpor.guest.port import Guest
from torpor.model import ExecEnded, ExecId, ExecOutput, ExecSpec
from torpor.templates.dockerfile.context import readable
from torpor.templates.dockerfile.made import Dockerfile
from torpor.templates.dockerfile.meaning import BuildStep, Copy, MakeFolder, Run
from torpor.templates.image_recipe import COMMAND_FILE, command_text
from torpor.templates.plan import Step

RUN_MOST_S = 3600.0
"""Of one RUN step."""

IMAGE_FILE = "/etc/torpor/image.json"
"""What the guest agent takes its defaults from."""

_SMALL_S = 300.0
_LOG_LINES, _LINE_CHARS, _LINES_TOLD = 60, 200, 1000
_NAMES_AT_ONCE = 200


async def carry_out(made: Dockerfile, guest: Guest, work: Path) -> AsyncGenerator[Step, None]:
    """Carry out the steps in `guest`, then leave the image's settings there.

    Args:
        made: the Dockerfile.
        guest: a machine that writes to the template's disk.
        work: a folder on the host for what is on its way.

    Raises:
        BuildFailed: a step failed; the message has its line, the facts the end of its output.
        InvalidRequest: a file of the context is not there, or the user does not exist.
    """
    if made.grows:
        await guest.grow_disk()
    steps = made.meaning.steps
    for number, step in enumerate(steps, start=1):
        yield Step(
            "run", f"step {number} of {len(steps)}: {_shown(step)}", (number - 1) / len(steps)
        )
        try:
            told = 0
            async with aclosing(_one(made, guest, step, work)) as lines:
                async for line in lines:
                    told += 1
                    if told <= _LINES_TOLD:
                        yield Step("run", line, (number - 1) / len(steps))
            if told > _LINES_TOLD:
                more = f"({told - _LINES_TOLD} more lines are not shown)"
                yield Step("run", more, number / len(steps))
        except (GuestFailed, NotFound, InvalidRequest, Conflict, LimitExceeded) as exc:
            if isinstance(exc, GuestUnreachable) or exc.message.startswith(_where(made, step)):
                raise
            raise BuildFailed(
                f"{_where(made, step)}: {exc.message}", hint=exc.hint, step="run"
            ) from exc
    await _leave_settings(guest, made)
    for note in made.meaning.notes:
        yield Step("run", note, 1.0)
    yield Step("run", "steps are done", 1.0)


async def _one(
    made: Dockerfile, guest: Guest, step: BuildStep, work: Path
) -> AsyncGenerator[str, None]:
    if isinstance(step, MakeFolder):
        await guest.mkdir(step.path)
    elif isinstance(step, Copy):
        await _copy(made, guest, step, work)
    else:
        spec = ExecSpec(
            command=step.command,
            env=step.env,
            user=step.user,
            cwd=step.cwd,
            timeout_seconds=RUN_MOST_S,
        )
        async with aclosing(_run(guest, spec, _where(made, step))) as lines:
            async for line in lines:
                yield line


async def _run(guest: Guest, spec: ExecSpec, where: str) -> AsyncGenerator[str, None]:
    """Run a command and yield its lines.

    Raises:
        BuildFailed: it ended with another status than 0.
        InvalidRequest: there is no such user or folder.
    """
    exec_id = ExecId(new_id("exec"))
    tail: deque[str] = deque(maxlen=_LOG_LINES)
    held = b""
    status: int | None = None
    try:
        async with guest.exec_run(exec_id, spec) as events:
            async for event in events:
                if isinstance(event, ExecOutput):
                    *whole, held = (held + event.data).split(b"\n")
                    for line in (*whole, *((held,) if len(held) > 4096 else ())):
                        tail.append(_as_seen(line))
                        yield tail[-1]
                    held = held if len(held) <= 4096 else b""
                elif isinstance(event, ExecEnded):
                    status = event.info.exit_code
    except InvalidRequest as exc:
        raise InvalidRequest(f"{where}: {exc.message}", hint=exc.hint) from exc
    if held:
        tail.append(_as_seen(held))
    if status != 0:
        shown = spec.command if isinstance(spec.command, str) else shlex.join(spec.command)
        raise BuildFailed(
            f"{where}: it ended with status {status}: {shown.splitlines()[0][:100]}",
            step="run",
            log="\n".join(tail),
        )


def _as_seen(line: bytes) -> str:
    """Return what a terminal shows of a line at its end: progress is written over with `\\r`."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")[:_LINE_CHARS]


async def _copy(made: Dockerfile, guest: Guest, step: Copy, work: Path) -> None:
    where = _where(made, step)
    with readable(where):
        selection = await asyncio.to_thread(made.context.select, step.sources, where)
    folder, name = step.target, None
    if selection.is_single and not step.target.endswith("/") and not await _is_dir(guest, folder):
        folder, name = posixpath.split(step.target)
    tar = work / "copy.tar"
    try:
        with readable(where):
            names = await asyncio.to_thread(selection.pack, tar, name=name, mode=step.mode)
        await guest.unpack(folder, _chunks(tar))
    finally:
        await asyncio.to_thread(tar.unlink, missing_ok=True)
    if not step.owner:
        return
    for first in range(0, len(names), _NAMES_AT_ONCE):
        paths = [posixpath.join(folder, n) for n in names[first : first + _NAMES_AT_ONCE]]
        await _quiet(guest, ("chown", "-h", step.owner, "--", *paths), where)


async def _is_dir(guest: Guest, path: str) -> bool:
    """Return whether a path is a folder, or a symlink to one."""
    try:
        return (await guest.stat(f"{path.rstrip('/')}/.")).kind == "dir"
    except (NotFound, GuestFailed, InvalidRequest):
        return False


async def _quiet(
    guest: Guest, command: Sequence[str], where: str, user: str = "root", cwd: str = "/"
) -> None:
    spec = ExecSpec(command=tuple(command), user=user, cwd=cwd, timeout_seconds=_SMALL_S)
    async with aclosing(_run(guest, spec, where)) as lines:
        async for _ in lines:
            pass


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while data := await asyncio.to_thread(file.read, 1 << 18):
            yield data


async def _leave_settings(guest: Guest, made: Dockerfile) -> None:
    """Write what commands start with into the image, once a command could start so."""
    meaning = made.meaning
    await guest.mkdir(meaning.cwd)
    line = f", line {meaning.user_line}" if meaning.user_line else ""
    where = f"{made.path}{line}: USER"
    await _quiet(guest, ("true",), where, user=meaning.user, cwd=meaning.cwd)
    image = {
        "env": dict(meaning.env),
        "default_user": meaning.user,
        "default_cwd": meaning.cwd,
    }
    text = json.dumps(image, indent=1) + "\n"
    await guest.write(IMAGE_FILE, _text(text), mode=0o644)
    if meaning.command:
        await guest.write(COMMAND_FILE, _text(command_text(meaning.command)), mode=0o755)
    else:  # CMD [] takes back what the base had
        with contextlib.suppress(NotFound):
            await guest.remove(COMMAND_FILE)


async def _text(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


def _where(made: Dockerfile, step: BuildStep) -> str:
    return f"{made.path}, line {step.line}"


def _shown(step: BuildStep) -> str:
    if isinstance(step, Run):
        text = step.command if isinstance(step.command, str) else shlex.join(step.command)
        return f"RUN {text.splitlines()[0][:80]}"
    if isinstance(step, Copy):
        return f"COPY {' '.join(step.sources)[:60]} {step.target}"
    return f"WORKDIR {step.path}"
