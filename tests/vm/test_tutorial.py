"""The README as it is written: every block is run, in order, and prints what the README shows.

A `python` block runs in one namespace with those before it, and what it prints is compared with a `text` block that
follows it at once. In a `console` block the lines with `$ ` run in one shell, and what each prints is
compared with the lines below it. `…` stands for anything.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.style.markdown import ROOT, Block, blocks
from torpor import Sandbox, Snapshot

README = ROOT / "README.md"
CHANGE = ROOT / "docs/how-to/change-without-fear.md"
DRILLS = ROOT / "docs/how-to/restore-drills.md"
WATCH = ROOT / "docs/how-to/watch.md"
RECOVER = ROOT / "docs/how-to/recover.md"


class Shell:
    """A bash that runs one command after the other and says what each printed, stderr with it."""

    def __init__(self, folder: Path) -> None:
        venv = Path(sys.executable).parent
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "PATH": f"{venv}:{os.environ['PATH']}:/usr/sbin"},
            text=True,
        )

    def run(self, command: str) -> tuple[str, int]:
        """Run a command in the shell and return what it printed, and its status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        mark = secrets.token_hex(8)
        self._process.stdin.write(f"{{\n{command}\n}} < /dev/null\necho; echo {mark} $?\n")
        self._process.stdin.flush()
        output: list[str] = []
        for line in self._process.stdout:
            if line.startswith(mark):
                return "".join(output).removesuffix("\n"), int(line.split()[1])
            output.append(line)
        pytest.fail(f"the shell ended in {command!r}: {''.join(output)}")

    def close(self) -> None:
        """End the shell."""
        self._process.communicate("exit\n")


@pytest.fixture
def shell(tmp_path: Path, base: str) -> Iterator[Shell]:
    found = Shell(tmp_path)
    yield found
    found.close()


@pytest.fixture
def tidy(base: str) -> Iterator[None]:
    """Remove the sandboxes and snapshots that a tutorial which failed leaves behind."""
    before = {s.id for s in Sandbox.list()}, {s.id for s in Snapshot.list()}
    yield
    for sandbox in Sandbox.list():
        if sandbox.id not in before[0]:
            sandbox.delete()
    for snapshot in Snapshot.list():
        if snapshot.id not in before[1] and snapshot.reason != "template":
            snapshot.delete()


def test_every_block_of_the_readme(shell: Shell, tidy: None) -> None:
    _run_blocks(README, shell)
    assert not [s.id for s in Sandbox.list() if s.info.metadata.get("job") == "tutorial"]


def test_every_block_of_changing_without_fear(shell: Shell, tidy: None) -> None:
    _run_blocks(CHANGE, shell)
    assert not [s.id for s in Sandbox.list() if s.info.metadata.get("name") == "hermes-1"]


def test_every_block_of_restore_drills(shell: Shell, tidy: None) -> None:
    _run_blocks(DRILLS, shell)
    assert not [s.id for s in Sandbox.list() if s.info.metadata.get("name") == "hermes-1"]


def test_every_block_of_watching(shell: Shell, tidy: None) -> None:
    _run_blocks(WATCH, shell)
    assert not [s.id for s in Sandbox.list() if s.info.metadata.get("name") == "hermes-1"]


def _run_blocks(path: Path, shell: Shell) -> None:
    found = blocks(path)
    names: dict[str, Any] = {"__name__": "readme"}
    for number, block in enumerate(found):
        if block.not_run is not None or block.language == "text":
            continue
        if block.language == "python":
            after = found[number + 1] if number + 1 < len(found) else None
            printed = _run_python(block, names)
            if after is not None and after.language == "text":
                _compare(after.place, printed, after.text)
        else:
            assert block.language == "console", f"{block.place}: nobody runs {block.language!r}"
            _run_console(block, shell)


def test_files_come_out_by_hand_as_recover_says(
    fresh: Sandbox, shell: Shell, tidy: None, tmp_path: Path
) -> None:
    (program,) = [b for b in blocks(RECOVER) if b.language == "python"]
    (commands,) = [b for b in blocks(RECOVER) if "disk.py" in b.text and b.language == "console"]
    (tmp_path / "disk.py").write_text(program.text)
    fresh.filesystem.write("/workspace/notes.md", "resume at step 4\n")
    snapshot = fresh.snapshot()
    fresh.filesystem.write("/workspace/notes.md", "step 5\n")
    fresh.exec("sync; systemctl poweroff", background=True)
    end = time.monotonic() + 120
    while fresh.refresh().state != "stopped":
        assert time.monotonic() < end, fresh.info.state
        time.sleep(0.2)
    for source, content in ((snapshot.id, "resume at step 4\n"), (fresh.id, "step 5\n")):
        for _, command, _ in _commands(commands):
            shell.run(command.replace("sbx_…", source))
        assert (tmp_path / "workspace/notes.md").read_text() == content
        shutil.rmtree(tmp_path / "workspace")


def _run_python(block: Block, names: dict[str, Any]) -> str:
    out = io.StringIO()
    source = "\n" * (block.line - 1) + block.text  # a traceback shows the README's own line
    with contextlib.redirect_stdout(out):
        exec(compile(source, str(block.path), "exec"), names)
    return out.getvalue()


def _run_console(block: Block, shell: Shell) -> None:
    for line, command, wanted in _commands(block):
        printed, status = shell.run(command)
        place = f"{block.path.name}:{line}"
        assert status == 0, f"{place}: {command!r} ended with {status}: {printed}"
        _compare(place, printed, wanted)


def _commands(block: Block) -> Iterator[tuple[int, str, str]]:
    """Yield the commands of a block, each with its line and the output that is shown below it."""
    shown = block.text.splitlines()
    starts = [number for number, line in enumerate(shown) if line.startswith("$ ")]
    assert starts, f"{block.place}: no line begins with `$ `"
    assert starts[0] == 0, f"{block.place}: the first line does not begin with `$ `"
    for start, end in zip(starts, [*starts[1:], len(shown)], strict=True):
        command = shown[start][2:]
        here = re.search(r"<<(\w+)$", command)  # its document belongs to the command
        after = shown.index(here[1], start) + 1 if here else start + 1
        lines = [command, *shown[start + 1 : after]]
        yield block.line + start, "\n".join(lines), "\n".join(shown[after:end])


def _compare(place: str, printed: str, wanted: str) -> None:
    parts = [re.escape(part) for part in _tidied(wanted).split("…")]
    pattern = r"[\s\S]*?".join(parts)
    assert re.fullmatch(pattern, _tidied(printed)), (
        f"{place} shows\n{wanted}\nand this was printed:\n{printed}"
    )


def _tidied(text: str) -> str:
    """Return text without blanks at the ends of lines, which no reader sees."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
