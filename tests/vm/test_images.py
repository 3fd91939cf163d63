"""Container images and Dockerfiles become templates: files, environment, user, folder and command."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.templates.oci_images import Layer, Layout
from torpor import Sandbox, Templates
from torpor.base.home import Home
from torpor.templates.debian import find_tool
from torpor.templates.manifest import read_pointer

NAME = "vm-image"
LEFT_OUT = (
    *("opt/torpor", "etc/torpor", "etc/systemd", "usr/sbin/init", "usr/lib/systemd", "boot"),
    *("usr/lib/modules", "usr/lib/udev", "usr/share", "usr/lib/git-core", "var/lib/torpor"),
    *("usr/sbin/resize2fs", "usr/sbin/poweroff", "usr/bin/systemctl", "var/lib/apt/lists"),
)
HOW = {
    "Env": ["PATH=/usr/bin:/bin:/srv/app", "GREETING=hello there"],
    "User": "agent",
    "WorkingDir": "/srv/app",
    "Entrypoint": ["sh", "-c"],
    "Cmd": ["echo $GREETING from $PWD as $(id -un)"],
}


@pytest.fixture
def image(base: str, vm_home: Home, tmp_path: Path) -> Path:
    """An OCI layout of two layers: what is left of `base` without init, kernel and agent, and an app."""
    disk = vm_home.templates / read_pointer(vm_home.templates, base) / "disk.raw"
    tree, tar = tmp_path / "tree", tmp_path / "low.tar"
    tree.mkdir()
    argv = [find_tool("debugfs") or "debugfs", "-R", f"rdump / {tree}", str(disk)]
    subprocess.run(argv, check=True, capture_output=True, timeout=300)
    left_out = [f"--exclude=./{name}" for name in LEFT_OUT]
    subprocess.run(["tar", "-C", tree, "-cf", tar, *left_out, "."], check=True, timeout=300)
    shutil.rmtree(tree)
    layout = Layout(tmp_path / "image")
    with tar.open("rb") as file:
        low = hashlib.file_digest(file, "sha256").hexdigest()
    shutil.move(tar, layout.path / "blobs/sha256" / low)
    app = Layer().folder("srv/app").add("srv/app/greet", "#!/bin/sh\necho $GREETING\n", mode=0o755)
    high = app.add("etc/.wh.debian_version").done()
    ids = [f"sha256:{low}", layout.blob(high)["digest"]]
    config = {"os": "linux", "architecture": "amd64", "config": HOW, "rootfs": {"diff_ids": ids}}
    manifest = {
        "config": layout.blob(json.dumps(config).encode()),
        "layers": [{"digest": digest} for digest in ids],
    }
    return layout.index(layout.blob(json.dumps(manifest).encode()))


def test_an_image_keeps_its_settings(image: Path) -> None:
    info = Templates.build(NAME, image=image, disk_gib=2)
    try:
        assert (info.default_user, info.default_cwd) == ("agent", "/srv/app")
        assert info.command == (*HOW["Entrypoint"], *HOW["Cmd"])
        assert Templates.build(NAME, image=image, disk_gib=2).digest == info.digest
        sandbox = Sandbox.create(template=NAME)
        try:
            said = sandbox.exec("greet; pwd; id -un; ls /etc/debian_version; true", check=True)
            assert said.stdout == "hello there\n/srv/app\nagent\n"
            # the image's command is there, and nothing has started it
            assert sandbox.exec("image-command", check=False).exit_code == 127
            ran = sandbox.exec("/opt/torpor/bin/image-command", check=True)
            assert ran.stdout == "hello there from /srv/app as agent\n"
        finally:
            sandbox.delete()
    finally:
        Templates.delete(NAME)


DOCKERFILE = """\
ARG NOTE=kept
FROM base
ARG NOTE
ENV GREETING="hello there" PATH=/srv/app/bin:$PATH
WORKDIR /srv/app
COPY bin ./bin/
COPY --chown=agent:agent --chmod=0640 data *.txt ./
RUN grep -q 10.0.2.15 /proc/net/fib_trie && echo "$NOTE $(id -un)" > /etc/note
USER agent
RUN ["sh", "-c", "greet > /tmp/said && ! touch /srv/app/no 2>/dev/null"]
EXPOSE 80
CMD ["greet", "again"]
"""


@pytest.fixture
def dockerfile(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "bin/greet").write_text("#!/bin/sh\necho $GREETING $1\n")
    (tmp_path / "bin/greet").chmod(0o755)
    (tmp_path / "data/x").write_text("x" * 300_000)
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "two.txt").write_text("two")
    (tmp_path / ".dockerignore").write_text("two.*\n")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    return tmp_path / "Dockerfile"


def test_a_dockerfile_on_base(base: str, dockerfile: Path) -> None:
    said: list[str] = []
    name = "vm-dockerfile"
    info = Templates.build(name, dockerfile=dockerfile, progress=lambda e: said.append(e.message))
    try:
        assert (info.default_user, info.default_cwd) == ("agent", "/srv/app")
        assert info.command == ("greet", "again")
        assert "line 11: EXPOSE has no meaning here" in said
        assert Templates.build(name, dockerfile=dockerfile).digest == info.digest
        sandbox = Sandbox.create(template=name)
        try:
            told = sandbox.exec("greet; pwd; id -un; cat /etc/note", check=True).stdout
            assert told == "hello there\n/srv/app\nagent\nkept root\n"
            owners = sandbox.exec("ls; stat -c '%U %a %s' x one.txt bin/greet", check=True).stdout
            assert owners == "bin\none.txt\nx\nagent 640 300000\nagent 640 3\nroot 755 28\n"
            start = sandbox.exec("/opt/torpor/bin/image-command", check=True)
            assert start.stdout == "hello there again\n"
        finally:
            sandbox.delete()
    finally:
        Templates.delete(name)
