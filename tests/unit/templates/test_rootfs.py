"""Root file systems from elsewhere: what is taken, what is refused, and that the host is out of their reach."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from torpor.errors import InvalidRequest
from torpor.templates import debian, recipe, rootfs
from torpor.templates.plan import BuildPlan, make_plan

LIBRARY = ("asyncio/__init__.py", "ctypes/__init__.py", "json/__init__.py", "tarfile.py")


class Tree:
    """A tar with a root file system, made entry by entry."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar = tarfile.open(path, "w")  # noqa: SIM115 - closed by `done`

    def file(self, name: str, text: str = "", mode: int = 0o644) -> Tree:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(text.encode()), mode
        self._tar.addfile(info, io.BytesIO(text.encode()))
        return self

    def link(self, name: str, target: str) -> Tree:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(info)
        return self

    def system(self) -> Tree:
        self.file("bin/sh", "#!", 0o755).file("etc/group", "root:x:0:\n")
        return self.file("etc/passwd", "root:x:0:0::/root:/bin/sh\nme:x:7:7::/me:/bin/sh\n")

    def python(self, version: str = "3.12", folder: str = "usr/local") -> Tree:
        self.file(f"{folder}/bin/python{version}", "", 0o755)
        self.link(f"{folder}/bin/python3", f"python{version}")
        for part in LIBRARY:
            self.file(f"{folder}/lib/python{version}/{part}")
        return self

    def done(self) -> Path:
        self._tar.close()
        return self.path


def plan_for(tar: Path, text: str = "") -> BuildPlan:
    path = tar.with_name("recipe.toml")
    path.write_text(f'name = "mine"\nrootfs = "{tar.name}"\ndisk_gib = 1\n{text}')
    return make_plan(recipe.load(path))


Make = Callable[[Path], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Build the image of a tar, without booting it; return its disk."""
    kernel, work, out = tmp_path / "kernel", tmp_path / "work", tmp_path / "out"
    for folder in (kernel, work, out):
        folder.mkdir()
    for name in ("vmlinuz", "initrd"):
        (kernel / name).write_text(name)

    def build(tar: Path, text: str = "") -> Path:
        from dataclasses import replace

        async def run() -> None:
            plan = replace(plan_for(tar, text), kernel=kernel)
            async for _ in rootfs.bootstrap(plan, work, out):
                pass

        asyncio.run(run())
        return out / "disk.raw"

    yield build  # type: ignore[misc]
    assert not (work / "closed").exists()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "rootfs.tar")


def in_image(disk: Path, command: str) -> str:
    tool = debian.find_tool("debugfs") or "debugfs"
    argv = [tool, "-R", command, str(disk)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_the_agent_and_its_init_are_put_in(tree: Tree, make: Make) -> None:
    disk = make(tree.system().python().file("tmp/old").file("etc/ssh/ssh_host_rsa_key").done())
    init = in_image(disk, "cat /opt/torpor/init")
    assert "exec /usr/local/bin/python3 -s -m torpor_guest" in init
    assert "@PYTHON@" not in init + in_image(disk, "cat /opt/torpor/sbin/resize2fs")
    assert "Mode:  0755" in in_image(disk, "stat /opt/torpor/init")
    assert "Mode:  0755" in in_image(disk, "stat /opt/torpor/busybox")
    assert "main.py" in in_image(disk, "ls /opt/torpor/torpor_guest")
    assert '"default_cwd": "/workspace"' in in_image(disk, "cat /etc/torpor/image.json")
    assert "old" not in in_image(disk, "ls /tmp")
    assert "ssh_host" not in in_image(disk, "ls /etc/ssh")
    assert ".torpor-stage" not in in_image(disk, "ls /")
    assert (disk.with_name("vmlinuz")).read_text() == "vmlinuz"


def test_a_compressed_tar_and_a_recipes_files(tree: Tree, make: Make) -> None:
    tar = tree.system().python(folder="usr").done()
    subprocess.run(["gzip", str(tar)], check=True)
    packed = tar.with_name("rootfs.tar.gz")
    text = 'default_user = "me"\n[env]\nA = "b"\n[[files]]\ntarget = "/etc/motd"\ncontent = "hi"\n'
    disk = make(packed, text)
    assert in_image(disk, "cat /etc/motd") == "hi"
    assert '"default_user": "me"' in in_image(disk, "cat /etc/torpor/image.json")


@pytest.mark.parametrize(
    ("fill", "what"),
    [
        (lambda t: t.system(), r"lacks python3 \(3.11 or newer"),
        (lambda t: t.system().python("3.9"), r"/usr/local/bin/python3 is Python 3\.9"),
        (
            lambda t: t.system().file("usr/bin/python3.13", "", 0o755).link("usr/bin/python3", "python3.13"),
            "the library of /usr/bin/python3 is not whole",
        ),
        (lambda t: t.python().file("etc/passwd", "root:x:0:0::/:"), "lacks a shell"),
        (lambda t: t.python().file("bin/sh", "", 0o755), "lacks /etc/passwd"),
        (lambda t: t.file("manifest.json", "[]").file("layer.tar"), "docker save"),
    ],
    ids=["no python", "old python", "half a python", "no shell", "no users", "docker save"],
)  # fmt: skip
def test_what_is_missing_is_said(
    tree: Tree, make: Make, fill: Callable[[Tree], Tree], what: str
) -> None:
    with pytest.raises(InvalidRequest, match=what):
        make(fill(tree).done())


def test_a_user_that_is_not_there_is_said(tree: Tree, make: Make) -> None:
    with pytest.raises(InvalidRequest, match="lacks the user 'nobody-here'"):
        make(tree.system().python().done(), 'default_user = "nobody-here"\n')


def test_what_is_no_tar_is_said(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "rootfs.tar"
    path.write_bytes(b"this is no tar" * 100)
    with pytest.raises(InvalidRequest, match="cannot be unpacked"):
        make(path)


def test_a_tree_that_does_not_fit_is_said(
    tree: Tree, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BuildPlan, "disk_bytes", 160 << 20)
    with pytest.raises(InvalidRequest, match="does not fit"):
        make(tree.system().python().file("big", "x" * (180 << 20)).done())


@pytest.mark.parametrize("name", [".torpor-stage", "opt", "etc/torpor", "tmp", "etc/ssh", "dev"])
def test_symlinks_lead_nowhere_on_the_host(
    tree: Tree, make: Make, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    (outside / "torpor").mkdir(parents=True)
    for kept in ("ssh_host_x", "torpor/kept"):
        (outside / kept).write_text("mine")
    before = sorted(outside.rglob("*"))
    tree.system().python().link(name, str(outside))
    with contextlib.suppress(InvalidRequest):  # refused is well, too
        make(tree.done())
    assert sorted(outside.rglob("*")) == before


def test_names_that_climb_out_are_left_out(tree: Tree, make: Make, tmp_path: Path) -> None:
    tree.system().python().file("../../../escaped", "x").file(f"{tmp_path}/absolute", "x")
    with contextlib.suppress(InvalidRequest):
        make(tree.done())
    assert not list(tmp_path.rglob("escaped"))
    assert not (tmp_path / "absolute").exists()


@pytest.mark.parametrize("key", ['base = "base"', 'packages = ["git"]', 'run = ["true"]'])
def test_a_recipe_has_either_a_root_file_system_or_packages(tmp_path: Path, key: str) -> None:
    (tmp_path / "r.tar").write_bytes(b"")
    path = tmp_path / "recipe.toml"
    path.write_text(f'name = "x"\nrootfs = "r.tar"\n{key}\n')
    with pytest.raises(InvalidRequest, match="not given beside rootfs"):
        recipe.load(path)


def test_a_tar_that_is_not_there_is_said(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('name = "x"\nrootfs = "nope.tar"\n')
    with pytest.raises(InvalidRequest, match=r"^there is no root file system .*/nope\.tar$"):
        recipe.load(path)
    (tmp_path / "nope.tar").mkdir()
    with pytest.raises(InvalidRequest, match="is a folder; a tar") as caught:
        recipe.load(path)
    assert "--image" in str(caught.value.hint)


def test_the_digest_is_the_contents(tmp_path: Path) -> None:
    tar = tmp_path / "a.tar"
    tar.write_bytes(b"one")
    one = plan_for(tar).recipe_digest
    shutil.copy(tar, tmp_path / "b.tar")
    assert plan_for(tmp_path / "b.tar").recipe_digest == one
    tar.write_bytes(b"two")
    assert plan_for(tar).recipe_digest != one
