"""Dockerfiles: what is read, what it means, what COPY takes, and how the steps are carried out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.records import T0
from tests.unit.templates.oci_images import Layer, layout
from torpor.errors import BuildFailed, HostNotReady, InvalidRequest, NotFound
from torpor.model import ExecEnded, ExecId, ExecInfo, ExecOutput, ExecSpec
from torpor.templates import planning, recipe
from torpor.templates.dockerfile import context as context_of
from torpor.templates.dockerfile import run
from torpor.templates.dockerfile.base import tree_base
from torpor.templates.dockerfile.context import Context
from torpor.templates.dockerfile.made import Dockerfile
from torpor.templates.dockerfile.meaning import (
    PATH,
    Base,
    Copy,
    MakeFolder,
    Meaning,
    Run,
    head_of,
    meaning_of,
)
from torpor.templates.dockerfile.parse import Script, instructions, read_script
from torpor.templates.oci import registry
from torpor.templates.plan import BuildPlan, Step


def script(text: str) -> Script:
    return Script(Path("/x/Dockerfile"), text)


def meaning(text: str, **base: Any) -> Meaning:
    made = script(text)
    return meaning_of(made, head_of(made), Base(**base))


# ---- what is read ----


def test_lines_comments_and_continuations() -> None:
    text = "# a comment\n\nFROM base\nRUN one \\\n# between\n\n  && two \\\n  && three\nuser  me\n"
    found = instructions(script(text))
    assert [(i.keyword, i.line) for i in found] == [("FROM", 3), ("RUN", 4), ("USER", 9)]
    assert found[1].value == "one   && two   && three"
    assert found[2].value == "me"


def test_the_escape_directive() -> None:
    found = instructions(script("# escape=`\nFROM base\nRUN a `\n b\\\n"))
    assert found[1].value == "a  b\\"


def test_json_forms_and_flags() -> None:
    found = instructions(script('FROM base\nRUN ["a b", "c"]\nCOPY --chown=me --chmod=0700 a b\n'))
    assert found[1].words == ("a b", "c")
    assert dict(found[2].flags) == {"chown": "me", "chmod": "0700"}
    assert found[2].value == "a b"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "line 1: there is no FROM"),
        ("RUN x\n", "line 1: RUN before FROM"),
        ("FROM base\nADD a b\n", "line 2: ADD is not supported"),
        ("FROM base\n\nVOLUME /x\n", "line 3: VOLUME is not supported"),
        ('FROM base\nSHELL ["x"]\n', "line 2: SHELL is not supported"),
        ("FROM base\nHEALTHCHECK NONE\n", "line 2: HEALTHCHECK is not supported"),
        ("FROM base\nONBUILD RUN x\n", "line 2: ONBUILD is not supported"),
        ("FROM base\nFETCH x\n", "line 2: 'FETCH' is no instruction"),
        ("FROM base\nRUN\n", "line 2: RUN has nothing after it"),
        ("FROM base\nRUN a \\\n", "line 2: the last line ends"),
        ("FROM base\nRUN <<EOF\nx\nEOF\n", "line 2: RUN has a here-document"),
        ("FROM base\nRUN --mount=type=cache x\n", "line 2: RUN --mount is not supported"),
        ("FROM base AS a\nFROM a\n", "line 2: a second FROM"),
        ("FROM base\nCOPY --from=a x y\n", "line 2: COPY --from is not supported"),
        ("FROM scratch\n", "line 1: FROM scratch has no Python"),
        ("FROM --platform=linux/arm64 base\n", "line 1: the platform is 'linux/arm64'"),
        ("FROM a b\n", "line 1: FROM wants one base"),
        ("FROM base\nCOPY a\n", "line 2: COPY wants"),
        ("FROM base\nCOPY --chown=a:b:c x y\n", "line 2: --chown is"),
        ("FROM base\nCOPY --chmod=u+x x y\n", "line 2: --chmod is"),
        ("FROM base\nENV A\n", "line 2: ENV wants"),
        ("FROM base\nENV A=b c\n", "line 2: ENV has 'c'"),
        ("FROM base\nENV 1A=b\n", "line 2: '1A' is no variable"),
        ("FROM base\nENV A='b\n", "line 2: ENV: a quote ' is not closed"),
        ("FROM base\nENV A=${B/x/y}\n", "line 2: ENV: '\\$.B/x/y.' is no variable"),
        ("FROM base\nUSER a b\n", "line 2: USER is 'a b'"),
        ("# escape=x\nFROM base\n", "line 1: escape is 'x'"),
        ("FROM base\n" + "RUN x\n" * 1001, "line 1001: there are over 1000"),
    ],
)
def test_what_is_refused_has_its_line(text: str, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match) as caught:
        meaning(text)
    assert "/x/Dockerfile, line" in caught.value.message


@pytest.mark.parametrize("data", [b"\xff\xfe", b"FROM \0", b"x" * ((1 << 20) + 1)])
def test_files_that_are_no_dockerfile(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "Dockerfile").write_bytes(data)
    with pytest.raises(InvalidRequest):
        read_script(tmp_path / "Dockerfile")


# ---- what it means ----


def test_env_args_users_and_folders() -> None:
    found = meaning(
        "ARG V=1\nARG W\nFROM base:${V}\nARG V\nARG W=w\nARG X\n"
        "ENV A=$V B=\"x ${A:-none}\" C='$V' D=a\\ b\n"
        "ENV E one two\n"
        "ENV PATH=/app:$PATH\n"
        "WORKDIR app/\nWORKDIR ../b\nUSER me:staff\nRUN go\n"
        'ENV F=${A:+yes}${X:+no}\nRUN ["exec", "$A"]\n',
        env={"LOW": "1"},
        cwd="/srv",
    )
    first, second = (step for step in found.steps if isinstance(step, Run))
    assert first.command == "go"
    assert second.command == ("exec", "$A")
    assert (first.user, first.cwd) == ("me", "/srv/b")
    env = {"LOW": "1", "A": "1", "B": "x none", "C": "$V", "D": "a b", "E": "one two"}
    env["PATH"] = f"/app:{PATH}"
    assert dict(first.env) == {**env, "V": "1", "W": "w"}
    assert dict(found.env) == {**env, "F": "yes"}
    assert [s.path for s in found.steps if isinstance(s, MakeFolder)] == ["/srv/app", "/srv/b"]
    assert (found.user, found.cwd) == ("me", "/srv/b")


def test_commands() -> None:
    low = {"command": ("low",)}
    assert meaning("FROM base\nRUN x\n", **low).command == ("low",)
    assert meaning("FROM base\nCMD go now\n", **low).command == ("/bin/sh", "-c", "go now")
    text = 'FROM base\nCMD ["x"]\nENTRYPOINT ["run"]\nCMD ["y"]\n'
    assert meaning(text, **low).command == ("run", "y")
    assert meaning('FROM base\nENTRYPOINT ["run"]\n', **low).command == ("run",)


def test_what_has_no_meaning_is_noted() -> None:
    found = meaning("FROM base\nLABEL a=b\nEXPOSE 80\nMAINTAINER x y\nSTOPSIGNAL INT\n")
    assert found.notes == (
        "line 2: LABEL has no meaning here",
        "line 3: EXPOSE has no meaning here",
        "line 4: MAINTAINER has no meaning here",
        "line 5: STOPSIGNAL has no meaning here",
    )
    assert found.steps == ()


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("a b", "/w/b"),
        ("a b/", "/w/b/"),
        ("a .", "/w/"),
        ("a ./", "/w/"),
        ("a /", "/"),
        ("a ../x", "/x"),
        ("a c d", "/w/d/"),
        ("a /opt/../x", "/x"),
        ("a $T/x", "/t/x"),
        ('["a b", "/c d"]', "/c d"),
    ],
)
def test_targets(words: str, target: str) -> None:
    found = meaning(f"FROM base\nENV T=/t\nCOPY {words}\n", cwd="/w")
    (step,) = found.steps
    assert isinstance(step, Copy)
    assert step.target == target


# ---- the context ----


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    context = tmp_path / "context"
    for name in ("a.txt", "b.txt", "d/x.py", "d/e/y.py", "d/y.pyc", "secret/key"):
        path = context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (context / "d/link").symlink_to("/etc/passwd")
    (tmp_path / "outside").write_text("mine")
    return context


def taken(folder: Path, *sources: str) -> list[str]:
    return sorted(entry.name for entry in Context(folder).select(sources, "x").entries)


def test_files_folders_and_patterns(folder: Path) -> None:
    assert taken(folder, "a.txt") == ["a.txt"]
    assert taken(folder, "*.txt") == ["a.txt", "b.txt"]
    assert taken(folder, "d") == ["e", "e/y.py", "link", "x.py", "y.pyc"]
    assert taken(folder, "/d/e/*.py") == ["y.py"]
    assert "secret/key" in taken(folder, ".")
    (tmp,) = [e for e in Context(folder).select(("d",), "x").entries if e.name == "link"]
    assert tmp.path.is_symlink()  # copied as it is; nothing is read through it


def test_dockerignore(folder: Path) -> None:
    (folder / ".dockerignore").write_text("# no\n\nsecret\n**/*.pyc\n/d/e/*\n!d/e/y.py\n*.txt\n")
    found = taken(folder, ".")
    assert found == [".dockerignore", "d", "d/e", "d/e/y.py", "d/link", "d/x.py"]
    with pytest.raises(InvalidRequest, match="names nothing"):
        taken(folder, "a.txt")


def test_ignored_folders_are_not_copied(folder: Path) -> None:
    (folder / ".dockerignore").write_text("secret\n")
    with pytest.raises(InvalidRequest, match="names nothing"):
        taken(folder, "secret")
    (folder / ".dockerignore").write_text("secret\n!secret/key\n")
    assert taken(folder, "secret") == ["key"]


@pytest.mark.parametrize(
    "source", ["../outside", "d/../../outside", "up", "far/passwd", "nope", "*.c"]
)
def test_nothing_from_outside(folder: Path, source: str) -> None:
    (folder / "up").symlink_to("../outside")
    (folder / "far").symlink_to("/etc")
    with pytest.raises(InvalidRequest, match=r"^x: COPY "):
        taken(folder, source)


def test_what_is_no_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "d/pipe")
    with pytest.raises(InvalidRequest, match=r"pipe is neither"):
        taken(folder, "d")


def test_files_that_cannot_be_read_are_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(context_of, "_open", denied)
    with pytest.raises(InvalidRequest, match=r"line 2: the context .*a\.txt cannot be read"):
        carried_out("FROM base\nCOPY a.txt b\n", folder, BuildGuest())
    made = Dockerfile(
        path=folder / "Dockerfile",
        meaning=meaning("FROM base\nCOPY a.txt b\n"),
        context=Context(folder),
    )
    with pytest.raises(InvalidRequest, match="line 2: the context"):
        made.digest("low")


def test_packing(folder: Path, tmp_path: Path) -> None:
    os.link(folder / "d/x.py", folder / "d/z.py")
    (folder / "d/x.py").chmod(0o755)
    selection = Context(folder).select(("d",), "x")
    selection.pack(tmp_path / "t.tar", name=None, mode=None)
    with tarfile.open(tmp_path / "t.tar") as tar:
        for name in ("x.py", "z.py"):
            member = tar.getmember(name)
            assert (member.isreg(), member.mode, member.uid) == (True, 0o755, 0)
            data = tar.extractfile(member)
            assert data is not None
            assert data.read() == b"d/x.py"
        assert tar.getmember("link").linkname == "/etc/passwd"


def test_the_digest_is_of_what_is_copied(folder: Path) -> None:
    def digest(low: str = "low") -> str:
        found = meaning("FROM base\nCOPY d /d\nRUN x\n")
        path = folder / "Dockerfile"
        return Dockerfile(path=path, meaning=found, context=Context(folder)).digest(low)

    first = digest()
    assert digest() == first
    assert digest("other") != first
    (folder / "a.txt").write_text("not copied")
    assert digest() == first
    (folder / "d/x.py").write_text("changed")
    second = digest()
    assert second != first
    (folder / "d/x.py").chmod(0o700)
    assert digest() != second


# ---- carrying it out ----


class BuildGuest:
    """The little of a guest that steps ask for."""

    def __init__(self, folders: tuple[str, ...] = (), status: int = 0) -> None:
        self.ran: list[ExecSpec] = []
        self.made: list[str] = []
        self.unpacked: list[tuple[str, list[str]]] = []
        self.written: dict[str, tuple[str, int | None]] = {}
        self.grown = 0
        self.removed: list[str] = []
        self._folders = folders
        self._status = status

    @contextlib.asynccontextmanager
    async def exec_run(self, exec_id: ExecId, spec: ExecSpec) -> AsyncIterator[AsyncIterator[Any]]:
        self.ran.append(spec)
        if spec.user == "nobody-here":
            raise InvalidRequest("the guest has no user 'nobody-here'")

        async def events() -> AsyncIterator[Any]:
            if spec.command == "chatter":
                yield ExecOutput("stdout", 0, b"x\n" * 5000)
            if spec.command == "progress":
                yield ExecOutput("stdout", 0, b"read ...\rread ... 50%\rread ... done.\r\n")
            yield ExecOutput("stdout", 0, b"first\nfoot")
            yield ExecOutput("stderr", 0, b"step\nlast")
            status = 0 if spec.command == ("true",) else self._status
            yield ExecEnded(
                ExecInfo(
                    exec_id=exec_id,
                    command="",
                    state="exited",
                    pid=1,
                    user="root",
                    cwd="/",
                    background=False,
                    started_at=T0,
                    exit_code=status,
                )
            )

        yield events()

    async def mkdir(self, path: str) -> None:
        self.made.append(path)

    async def stat(self, path: str) -> Any:
        if path.removesuffix("/.") not in self._folders:
            raise NotFound(path)
        return type("Found", (), {"kind": "dir"})

    async def unpack(self, path: str, chunks: AsyncIterator[bytes]) -> int:
        data = b"".join([chunk async for chunk in chunks])
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            self.unpacked.append((path, tar.getnames()))
        return 1

    async def write(self, path: str, chunks: AsyncIterator[bytes], *, mode: int | None) -> None:
        self.written[path] = (b"".join([chunk async for chunk in chunks]).decode(), mode)

    async def remove(self, path: str) -> None:
        self.removed.append(path)
        raise NotFound(path)

    async def grow_disk(self) -> int:
        self.grown += 1
        return 1


def carried_out(text: str, folder: Path, guest: BuildGuest, *, grows: bool = False) -> list[Step]:
    made = Dockerfile(
        path=folder / "Dockerfile", meaning=meaning(text), context=Context(folder), grows=grows
    )
    work = folder.parent / "work"
    work.mkdir(exist_ok=True)

    async def steps() -> list[Step]:
        return [step async for step in run.carry_out(made, guest, work)]  # type: ignore[arg-type]

    try:
        return asyncio.run(steps())
    finally:
        assert list(work.iterdir()) == []


def test_steps_run_in_order_and_leave_the_settings(folder: Path) -> None:
    guest = BuildGuest(folders=("/srv",))
    text = (
        "FROM base\nENV A=1\nWORKDIR /app\nCOPY a.txt b\nCOPY a.txt /srv\nCOPY --chown=me:us d e\n"
        'RUN make it\nUSER me\nCMD ["go", "a b"]\nLABEL x=y\n'
    )
    said = [step.message for step in carried_out(text, folder, guest, grows=True)]
    assert guest.grown == 1
    assert guest.made == ["/app", "/app"]
    assert guest.unpacked[0] == ("/app", ["b"])
    assert guest.unpacked[1] == ("/srv", ["a.txt"])
    assert guest.unpacked[2][0] == "/app/e"
    chown, make, check = guest.ran
    assert chown.command[:4] == ("chown", "-h", "me:us", "--")
    assert "/app/e/e/y.py" in chown.command
    assert (make.command, make.user, make.cwd, dict(make.env)) == (
        "make it", "root", "/app", {"A": "1"},
    )  # fmt: skip
    assert (check.command, check.user, check.cwd) == (("true",), "me", "/app")
    image, mode = guest.written["/etc/torpor/image.json"]
    assert json.loads(image) == {"env": {"A": "1"}, "default_user": "me", "default_cwd": "/app"}
    assert mode == 0o644
    start = guest.written["/opt/torpor/bin/image-command"]
    assert start == ("#!/bin/sh\nexec go 'a b' \"$@\"\n", 0o755)
    assert said[0] == "step 1 of 5: WORKDIR /app"
    assert {"first", "footstep"} <= set(said)
    assert "line 10: LABEL has no meaning here" in said


def test_of_progress_the_end_is_told(folder: Path) -> None:
    said = [step.message for step in carried_out("FROM base\nRUN progress\n", folder, BuildGuest())]
    assert "read ... done." in said
    assert not [line for line in said if "\r" in line or "50%" in line]


def test_a_step_that_fails_says_its_line(folder: Path) -> None:
    with pytest.raises(
        BuildFailed, match=r"Dockerfile, line 3: it ended with status 7: b$"
    ) as caught:
        carried_out("FROM base\n\nRUN b\nRUN c\n", folder, BuildGuest(status=7))
    assert caught.value.facts["log"] == "first\nfootstep\nlast"


def test_no_command_is_left_when_there_is_none(folder: Path) -> None:
    guest = BuildGuest()
    carried_out("FROM base\nCMD []\n", folder, guest)
    assert guest.removed == ["/opt/torpor/bin/image-command"]
    assert "/opt/torpor/bin/image-command" not in guest.written


def test_what_a_step_tells_is_bounded(folder: Path) -> None:
    said = [s.message for s in carried_out("FROM base\nRUN chatter\n", folder, BuildGuest())]
    assert said.count("x") == 1000
    assert "(4002 more lines are not shown)" in said


def test_a_user_who_is_not_there(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="line 2: USER: the guest has no user"):
        carried_out("FROM base\nUSER nobody-here\n", folder, BuildGuest())


# ---- recipes, and what FROM names ----


def draft(tmp_path: Path, text: str, more: str = "") -> planning.Draft:
    (tmp_path / "Dockerfile").write_text(text)
    path = tmp_path / "recipe.toml"
    path.write_text(f'name = "mine"\ndockerfile = "Dockerfile"\n{more}')
    return planning.draft_of(recipe.load(path))


def planned(tmp_path: Path, text: str) -> BuildPlan:
    return asyncio.run(planning.plan_of_dockerfile(draft(tmp_path, text), None))


def test_from_a_template_a_path_or_a_registry(tmp_path: Path) -> None:
    assert draft(tmp_path, "FROM base\n").parent_name == "base"
    assert draft(tmp_path, "FROM python:3.12\n").parent_name is None
    layout(tmp_path / "image", Layer().add("a"), User="7", Env=["A=1"], Cmd=["go"])
    plan = planned(tmp_path, "FROM ./image\nENV B=$A\n")
    assert plan.dockerfile is not None
    assert dict(plan.dockerfile.meaning.env) == {"A": "1", "B": "1"}
    assert (plan.dockerfile.meaning.user, plan.dockerfile.meaning.command) == ("7", ("go",))
    assert (plan.recipe.image, plan.recipe.default_user) == (tmp_path / "image", "7")
    assert plan.recipe_digest != planned(tmp_path, "FROM ./image\nENV B=2\n").recipe_digest


def test_a_base_that_is_nowhere_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.shutil, "which", lambda _: None)
    where = rf"^{tmp_path}/Dockerfile, line 2: FROM nowhere is no template here; .*skopeo"
    with pytest.raises(HostNotReady, match=where) as caught:
        planned(tmp_path, "\nFROM nowhere\n")
    assert "apt-get install skopeo" in str(caught.value.hint)


def test_from_a_root_file_system(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "tree.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("etc/passwd"))
    plan = planned(tmp_path, "FROM ./tree.tar\nRUN x\n")
    assert plan.recipe.rootfs == tmp_path / "tree.tar"
    made = script("FROM ./nope\n")
    with pytest.raises(InvalidRequest, match=r"line 1: FROM \./nope"):
        tree_base(made, head_of(made), tmp_path)


def test_from_itself_and_from_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="names the template itself"):
        draft(tmp_path, "FROM mine\n")
    with pytest.raises(InvalidRequest, match="line 1: FROM"):
        planned(tmp_path, "FROM no//thing!\n")


@pytest.mark.parametrize(
    "more", ['base = "base"', 'rootfs = "x"', "packages = []", 'context = "nope"', "env = {}"]
)
def test_keys_that_do_not_go_with_a_dockerfile(tmp_path: Path, more: str) -> None:
    with pytest.raises(InvalidRequest, match=more.split(" ", maxsplit=1)[0]):
        draft(tmp_path, "FROM base\n", more)


def test_a_dockerfile_and_a_context_that_are_not_there_are_said(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('name = "x"\ndockerfile = "Dockerfile"\ncontext = "nope"\n')
    with pytest.raises(InvalidRequest, match=r"^there is no Dockerfile .*/Dockerfile$") as caught:
        recipe.load(path)
    assert "host" in str(caught.value.hint)
    (tmp_path / "Dockerfile").write_text("FROM base\n")
    with pytest.raises(InvalidRequest, match=r"^the context .*/nope is no folder$"):
        recipe.load(path)
