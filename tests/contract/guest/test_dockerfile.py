"""The steps of a Dockerfile against a guest agent: files, folders, commands and what is left for later boots."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from torpor.errors import BuildFailed
from torpor.guest.port import Guest
from torpor.templates.dockerfile import run
from torpor.templates.dockerfile.context import Context
from torpor.templates.dockerfile.made import Dockerfile
from torpor.templates.dockerfile.meaning import Base, head_of, meaning_of
from torpor.templates.dockerfile.parse import Script
from torpor.templates.plan import Step

pytestmark = pytest.mark.anyio

LONG = "n" * 120


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run, "IMAGE_FILE", str(tmp_path / "etc/image.json"))
    monkeypatch.setattr(run, "COMMAND_FILE", str(tmp_path / "bin/image-command"))
    folder = tmp_path / "context"
    (folder / f"d/{LONG}/{LONG}").mkdir(parents=True)
    (folder / "a").write_text("A")
    (folder / "d/run.sh").write_text("echo ran $GREETING from $PWD\n")
    (folder / "d/run.sh").chmod(0o755)
    (folder / f"d/{LONG}/{LONG}/deep").write_text("deep")
    (folder / "d/link").symlink_to("run.sh")
    return folder


async def carry_out(guest: Guest, context: Path, text: str) -> list[Step]:
    script = Script(context / "Dockerfile", text)
    base = Base(user=str(os.getuid()), cwd=str(context.parent))
    made = Dockerfile(
        path=script.path,
        meaning=meaning_of(script, head_of(script), base),
        context=Context(context),
    )
    work = context.parent / "work"
    work.mkdir()
    try:
        return [step async for step in run.carry_out(made, guest, work)]
    finally:
        assert list(work.iterdir()) == []


async def test_files_commands_and_settings(guest: Guest, context: Path) -> None:
    top = context.parent / "guest-tree"
    (top / "there").mkdir(parents=True)
    text = (
        f"FROM base\nENV GREETING=hello\nWORKDIR {top}/app\nCOPY a renamed\nCOPY a ../there\n"
        f"COPY --chown={os.getuid()} --chmod=0700 d tools\nCOPY a d/run.sh both/\n"
        'RUN ./tools/link >said && echo told\nRUN ["cp", "said", "copied $GREETING"]\nCMD ["x"]\n'
    )
    said = await carry_out(guest, context, text)
    assert "told" in [step.message for step in said]
    app = top / "app"
    assert (app / "renamed").read_text() == (top / "there/a").read_text() == "A"
    assert (app / "tools/run.sh").stat().st_mode & 0o777 == 0o700
    assert (app / f"tools/{LONG}/{LONG}/deep").read_text() == "deep"
    assert (app / "tools/link").is_symlink()
    assert sorted(path.name for path in (app / "both").iterdir()) == ["a", "run.sh"]
    assert (app / "copied $GREETING").read_text() == f"ran hello from {app}\n"
    image = json.loads(Path(run.IMAGE_FILE).read_text())
    wanted = {"GREETING": "hello"}
    assert image == {
        "env": wanted, "default_user": str(os.getuid()), "default_cwd": str(app),
    }  # fmt: skip
    assert Path(run.COMMAND_FILE).stat().st_mode & 0o777 == 0o755


async def test_a_command_that_fails(guest: Guest, context: Path) -> None:
    with pytest.raises(BuildFailed, match="line 2: it ended with status 3") as caught:
        await carry_out(guest, context, "FROM base\nRUN echo why; exit 3\nRUN never\n")
    assert caught.value.facts["log"] == "why"
    assert not Path(run.IMAGE_FILE).exists()


async def test_a_folder_that_cannot_be(guest: Guest, context: Path) -> None:
    with pytest.raises(BuildFailed, match=r"line 2: "):
        await carry_out(guest, context, f"FROM base\nWORKDIR {context}/a/b\n")
