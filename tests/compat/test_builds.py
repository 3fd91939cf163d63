"""Template builds as PandaStack's client asks for them; the machine that they make is a fake one."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pandastack
import pytest
from pandastack.exceptions import BadRequestError, NotFoundError, ServerError

from tests.fakes.serving import Tcp
from torpor.base.home import Home
from torpor.errors import InsufficientResources, RateLimited
from torpor.model_access import Scope
from torpor.recovery.desk import Recovery
from torpor.server.compat import builds, upload
from torpor.server.compat.builds import OPEN_MOST, BuildDesk
from torpor.templates import planning, recipe


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    path = tmp_path / "rootfs.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("etc/passwd")
        info.size = 3 << 20
        tar.addfile(info, io.BytesIO(bytes(info.size)))
    return path


def folders(tcp: Tcp) -> list[str]:
    """Return what is left of builds on disk."""
    builds = tcp.home.builds
    return sorted(str(path.relative_to(builds)) for path in builds.rglob("*"))


def test_a_build_from_a_root_file_system(tcp: Tcp, panda: pandastack.Client, rootfs: Path) -> None:
    build = panda.templates.build("mine", rootfs_tar=str(rootfs), poll_interval=0.05)
    assert (build.status, build.name, build.error) == ("done", "mine", None)
    assert build.bytes == rootfs.stat().st_size
    assert build.size_mb == 1024
    assert build.ended_at
    lines = list(panda.templates.build_logs(build.id))
    assert "image: writing the image" in lines
    assert list(panda.templates.build_logs(build.id, follow=False)) == lines
    assert panda.templates.get("mine").is_global is False
    assert [t.name for t in panda.templates.list()] == ["agent", "base", "mine"]
    assert build.id in [b.id for b in panda.templates.builds()]
    assert panda.templates.wait_for_build(build.id).is_done
    assert not [name for name in folders(tcp) if name.endswith((".tar", ".toml"))]
    panda.templates.delete("mine")
    with pytest.raises(NotFoundError):
        panda.templates.get("mine")


def test_a_build_that_fails_says_why(panda: pandastack.Client, rootfs: Path) -> None:
    build = panda.templates.build("broken", rootfs_tar=str(rootfs), poll_interval=0.05)
    assert build.status == "failed"
    assert build.error == "recipe.toml: step `run` failed: exit 1", (
        "a name, and no path of the host"
    )
    lines = list(panda.templates.build_logs(build.id))
    assert lines[-2:] == ["| boom", "failed: recipe.toml: step `run` failed: exit 1"]


def test_an_unknown_build_is_a_404_and_builds_are_a_route_of_their_own(
    panda: pandastack.Client,
) -> None:
    assert isinstance(panda.templates.builds(), list)
    for call in (panda.templates.get_build, lambda b: list(panda.templates.build_logs(b))):
        with pytest.raises(NotFoundError):
            call("bld_unknown")


def test_builds_are_the_workspaces_own(tcp: Tcp, panda: pandastack.Client, rootfs: Path) -> None:
    build = panda.templates.build("ours", rootfs_tar=str(rootfs), poll_interval=0.05)
    other = pandastack.Client(
        api_url=tcp.url, api_key=tcp.token("builder", Scope.ADMIN, "elsewhere")
    )
    with other.session:
        assert other.templates.builds() == []
        with pytest.raises(NotFoundError):
            other.templates.get_build(build.id)


def test_only_admins_build(tcp: Tcp, tokens: dict[Scope, str], rootfs: Path) -> None:
    user = pandastack.Client(api_url=tcp.url, api_key=tokens[Scope.USE])
    with user.session, pytest.raises(BadRequestError, match="scope"):
        user.templates.build("x", rootfs_tar=str(rootfs))


@pytest.mark.parametrize("name", ["", "no name!", "base", "bld_00000000000000000000"])
def test_a_name_that_cannot_be_leaves_nothing(
    tcp: Tcp, panda: pandastack.Client, rootfs: Path, name: str
) -> None:
    before = folders(tcp)
    with pytest.raises(BadRequestError):
        panda.templates.build(name, rootfs_tar=str(rootfs))
    assert folders(tcp) == before


def test_dockerfiles_with_their_context(
    tcp: Tcp, panda: pandastack.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tmp_path / "context"
    (context / "sub").mkdir(parents=True)
    (context / "rootfs").write_bytes(b"a file of that name")
    (context / "sub/big").write_bytes(b"x" * (2 << 20))
    seen: dict[str, object] = {}
    real = builds._write_recipe

    def look(folder: Path, *given: object) -> None:
        real(folder, *given)  # type: ignore[arg-type]
        made = recipe.load(folder / builds.RECIPE)
        assert made.context is not None
        draft = planning.draft_of(made)
        seen["base"] = draft.head.base
        seen["files"] = [e.name for e in draft.context.select((".",), "x").entries]

    monkeypatch.setattr(builds, "_write_recipe", look)
    build = panda.templates.build_from_dockerfile(
        "x", "FROM base\nCOPY . /srv\n", context_dir=str(context)
    )
    assert panda.templates.wait_for_build(build.id, poll_interval=0.05).is_done
    assert seen == {"base": "base", "files": ["rootfs", "sub", "sub/big"]}
    assert build.bytes == (2 << 20) + len(b"a file of that name")
    left = [name for name in folders(tcp) if name.startswith(build.id)]
    assert left == [build.id, f"{build.id}/build.json", f"{build.id}/log"]


def test_images_of_a_registry(tcp: Tcp, panda: pandastack.Client) -> None:
    build = panda.templates.register("x", "registry.test/x:1")
    assert panda.templates.wait_for_build(build.id, poll_interval=0.05).is_done
    before = folders(tcp)
    with pytest.raises(BadRequestError, match="neither an image"):
        panda.templates.register("x", "no image!")
    assert folders(tcp) == before


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a//b", "n" * 300, "."])
def test_context_files_stay_in_their_folder(tcp: Tcp, panda: pandastack.Client, name: str) -> None:
    before = folders(tcp)
    reply = panda.session.post(
        f"{panda.api_url}/v1/templates/build",
        data={"name": "x", "dockerfile": "FROM base"},
        files={name: (name, b"x")},
    )
    assert reply.status_code == 400, reply.text
    assert folders(tcp) == before


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b""),
        ("multipart/form-data; boundary=x", b"--y\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="rootfs"; filename="r"\r\n\r\nhalf',
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="rootfs"; filename="r"\r\n\r\na\r\n' * 2,
        ),
        ("application/x-www-form-urlencoded", b"name=x&size_mb=1"),
        ("application/x-www-form-urlencoded", b"\xff=x"),
    ],
)
def test_what_is_no_form_leaves_nothing(
    tcp: Tcp, panda: pandastack.Client, content_type: str, body: bytes
) -> None:
    before = folders(tcp)
    reply = panda.session.post(
        f"{panda.api_url}/v1/templates/build", data=body, headers={"Content-Type": content_type}
    )
    assert reply.status_code == 400, reply.text
    assert isinstance(reply.json()["error"], str)
    assert folders(tcp) == before


def test_fields_have_a_limit(tcp: Tcp, panda: pandastack.Client) -> None:
    before = folders(tcp)
    reply = panda.session.post(
        f"{panda.api_url}/v1/templates/build",
        files={"name": (None, "x" * (upload.FIELDS_MOST_BYTES + 1))},
    )
    assert reply.status_code == 413
    assert folders(tcp) == before


def test_a_full_disk_refuses_the_upload(
    tcp: Tcp, panda: pandastack.Client, rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = folders(tcp)
    monkeypatch.setattr(upload._Reader, "_write", _no_room)
    with pytest.raises(ServerError, match="no room"):
        panda.templates.build("x", rootfs_tar=str(rootfs))
    assert folders(tcp) == before


def _no_room(reader: upload._Reader, _file: object, _data: bytes) -> None:
    raise reader._no_room()


def test_the_command_line_of_the_package(
    tcp: Tcp, tokens: dict[Scope, str], panda: pandastack.Client, rootfs: Path, tmp_path: Path
) -> None:
    build = panda.templates.build("cli", rootfs_tar=str(rootfs), poll_interval=0.05)
    env = {
        "PANDASTACK_API": tcp.url,
        "PANDASTACK_API_KEY": tokens[Scope.ADMIN],
        "HOME": str(tmp_path),
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "pandastack", "template", *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=50)

    logs = run("build-logs", build.id, "--follow")
    assert logs.returncode == 0, logs.stderr
    assert "image: writing the image" in logs.stdout
    (tmp_path / "Dockerfile").write_text("FROM base\n")
    built = run("build", "--name", "x", "-f", str(tmp_path / "Dockerfile"))
    # its command then asks for the build's end in a way that the package itself does not have
    assert "done: ready" in built.stdout + built.stderr


# ---- the desk ----


def test_what_a_daemon_left_has_failed_for_the_next(tcp: Tcp, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")

    async def work() -> None:
        recovery = Recovery(home, tcp.server.engine)
        first = BuildDesk(recovery.home, tcp.server.engine)
        await first.start()
        build_id, folder = await first.open_folder()
        (folder / "rootfs.tar").write_bytes(b"x")
        first._turn = _Never()  # type: ignore[assignment]
        await first.begin(build_id, "x", workspace="default", size_mb=1, size_bytes=1)
        lost_id, _ = await first.open_folder()
        await first.aclose()

        second = BuildDesk(home, tcp.server.engine)
        await second.start()
        found = second.get(build_id, None)
        assert found.status == "failed"
        assert "daemon ended" in (found.error or "")
        assert [p.name for p in folder.iterdir()] == ["build.json"]
        assert not (home.builds / lost_id).exists()  # its upload never ended
        assert [line async for line in second.lines(build_id, follow=True)] == []
        await second.aclose()

    home.prepare()
    tcp.server.run(work())


def test_too_many_builds_are_refused(tcp: Tcp, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")

    async def work() -> None:
        desk = BuildDesk(home, tcp.server.engine)
        desk._turn = _Never()  # type: ignore[assignment]
        for _ in range(OPEN_MOST):
            build_id, _folder = await desk.open_folder()
            await desk.begin(build_id, "x", workspace="default", size_mb=1, size_bytes=1)
        with pytest.raises(RateLimited, match="are under way"):
            await desk.open_folder()
        await desk.aclose()

    home.prepare()
    tcp.server.run(work())


class _Never:
    """A lock that nobody gets."""

    async def __aenter__(self) -> None:
        import asyncio

        await asyncio.Event().wait()

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError


def test_room_is_looked_at_while_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "free_bytes", lambda _path: 0)
    reader = upload._Reader("x", tmp_path / "rootfs.tar", tmp_path / "context")
    head = b'--x\r\nContent-Disposition: form-data; name="rootfs"; filename="r"\r\n\r\n'
    reader.feed(head)
    for _ in range(63):
        reader.feed(bytes(1 << 20))
    with pytest.raises(InsufficientResources):
        reader.feed(bytes(2 << 20))
    reader.drop()
    assert list(tmp_path.iterdir()) == []
