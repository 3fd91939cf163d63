"""Container images: what is read, what comes of their layers, and what is refused."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.templates.oci_images import Layer, Layout, config_of, docker_archive, layout
from torpor.errors import HostNotReady, InvalidRequest, LimitExceeded, NotFound, TorporError
from torpor.templates import recipe
from torpor.templates.image_recipe import with_settings
from torpor.templates.oci import layers as unpacking
from torpor.templates.oci import registry
from torpor.templates.oci.flatten import flatten
from torpor.templates.oci.image import look
from torpor.templates.plan import make_plan


def flat(image: Path, work: Path, **limits: Any) -> tarfile.TarFile:
    work.mkdir(exist_ok=True)
    path, _ = flatten(image, look(image).settings.identity(), work, **limits)
    assert [p.name for p in work.iterdir()] == ["rootfs.tar"]
    return tarfile.open(path)


def names(tar: tarfile.TarFile) -> list[str]:
    return sorted(member.name for member in tar if member.name != ".")


def text(tar: tarfile.TarFile, name: str) -> str:
    file = tar.extractfile(name)
    assert file is not None
    return file.read().decode()


# ---- what is read ----


def test_settings(tmp_path: Path) -> None:
    path = layout(
        tmp_path / "i",
        Layer().add("a"),
        Env=["PATH=/bin", "A=b=c"],
        User="app:staff",
        WorkingDir="/srv/app/",
        Entrypoint=["/run", "now"],
        Cmd=["a b"],
    )
    found = look(path).settings
    assert dict(found.env) == {"PATH": "/bin", "A": "b=c"}
    assert (found.user, found.cwd) == ("app", "/srv/app")
    assert found.command == ("/run", "now", "a b")


def test_a_layout_its_tar_and_a_docker_archive_are_one_image(tmp_path: Path) -> None:
    def both() -> tuple[Layer, Layer, Layer]:
        return Layer().add("a", "1"), Layer().add("b", "2"), Layer().add("a", "1")

    folder = layout(tmp_path / "i", *both(), User="7")
    tar = tmp_path / "i.tar"
    with tarfile.open(tar, "w") as out:
        out.add(folder, ".")
    saved = docker_archive(tmp_path / "saved.tar", *both(), User="7")
    assert len({look(path).settings.identity() for path in (folder, tar, saved)}) == 1
    for number, path in enumerate((folder, tar, saved)):
        with flat(path, tmp_path / f"w{number}") as found:
            assert names(found) == ["a", "b"]
            assert text(found, "b") == "2"


def test_the_platform_is_chosen(tmp_path: Path) -> None:
    made = Layout(tmp_path / "i")
    arm = made.manifest([Layer().add("arm").done()], architecture="arm64")
    amd = made.manifest([Layer().add("amd").done()])
    note = {"platform": {"os": "unknown", "architecture": "unknown"}}
    inner = {
        "manifests": [
            arm | {"platform": {"os": "linux", "architecture": "arm64"}},
            amd | {"platform": {"os": "linux", "architecture": "amd64"}},
            arm | note,
        ]
    }
    with flat(made.index(made.blob(json.dumps(inner).encode())), tmp_path / "w") as tar:
        assert names(tar) == ["amd"]
    with pytest.raises(InvalidRequest, match=r"has 0 images for linux/amd64.*linux/arm64"):
        look(made.index(arm | {"platform": {"os": "linux", "architecture": "arm64"}}))
    with pytest.raises(InvalidRequest, match="is for linux/arm64"):
        look(made.index(arm))
    other = made.manifest([Layer().add("b").done()])
    with pytest.raises(InvalidRequest, match="has 2 images"):
        look(made.index(amd, other))


def test_layers_plain_gzip_and_zstd(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packs = {"plain": bytes, "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}
    for name, pack in packs.items():
        made = Layout(tmp_path / name)
        path = made.index(made.manifest([Layer().add("a", "x" * 5000).done()], pack=pack))
        with flat(path, tmp_path / f"w-{name}") as tar:
            assert text(tar, "a") == "x" * 5000


def test_zstd_without_a_reader_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    made = Layout(tmp_path / "i")
    path = made.index(made.manifest([b"x"], pack=lambda _: b"\x28\xb5\x2f\xfdx"))
    monkeypatch.setattr(unpacking.importlib, "import_module", missing)
    with pytest.raises(HostNotReady, match="zstd") as caught:
        flat(path, tmp_path / "w")
    assert "pip install zstandard" in str(caught.value.hint)
    assert list((tmp_path / "w").iterdir()) == []


# ---- what comes of the layers ----


def test_whiteouts_hide_what_lower_layers_have(tmp_path: Path) -> None:
    low = Layer().folder("d").add("d/old", "1").add("d/kept", "1").folder("o").add("o/old", "1")
    low.add("file", "1").folder("gone").add("gone/deep", "1")
    high = Layer().add("d/.wh.old").add("o/new", "2").add("o/.wh..wh..opq").add(".wh.gone")
    high.add(".wh.file").add("file", "2").add(".wh..wh.plnk").add(".wh.never")
    with flat(layout(tmp_path / "i", low, high), tmp_path / "w") as tar:
        assert names(tar) == ["d", "d/kept", "file", "o", "o/new"]
        assert text(tar, "file") == "2"


def test_folders_files_and_links_take_each_others_place(tmp_path: Path) -> None:
    low = Layer().folder("a").add("a/x", "1").add("b", "1").symlink("c", "a").folder("m", 0o700)
    high = Layer().add("a", "2").folder("b").add("b/y", "2").add("c", "3").folder("m", 0o1777)
    with flat(layout(tmp_path / "i", low, high), tmp_path / "w") as tar:
        assert names(tar) == ["a", "b", "b/y", "c", "m"]
        assert (text(tar, "a"), text(tar, "b/y"), text(tar, "c")) == ("2", "2", "3")
        assert tar.getmember("m").mode == 0o1777


def test_hard_links_keep_the_file_they_meant(tmp_path: Path) -> None:
    low = Layer().add("z", "low", uid=7, gid=8, mode=0o4755).hardlink("b", "z").hardlink("y", "./z")
    high = Layer().add("z", "high").hardlink("c", "/b")
    with flat(layout(tmp_path / "i", low, high), tmp_path / "w") as tar:
        assert [text(tar, name) for name in "bcyz"] == ["low", "low", "low", "high"]
        assert tar.getmember("c").islnk()
        first = tar.getmember("b")
        assert (first.uid, first.gid, first.mode) == (7, 8, 0o4755)


def test_file_capabilities_are_kept_and_other_headers_are_not(tmp_path: Path) -> None:
    headers = {
        "SCHILY.xattr.security.capability": "\x01\x00\x00\x02",
        "SCHILY.xattr.user.x": "1",
        "path": "../out",
    }
    info = tarfile.TarInfo("ping")
    info.pax_headers = headers
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        del info.pax_headers["path"]
        tar.addfile(info)
    made = Layout(tmp_path / "i")
    with flat(made.index(made.manifest([buffer.getvalue()])), tmp_path / "w") as tar:
        assert tar.getmember("ping").pax_headers == {
            "SCHILY.xattr.security.capability": "\x01\x00\x00\x02"
        }


def test_odd_names_and_devices(tmp_path: Path) -> None:
    odd = b"x\xff".decode("utf-8", "surrogateescape")
    layer = Layer().add(odd, "1").add("n" * 200 + "/" + "m" * 200, "2")
    layer.add("null", type=tarfile.CHRTYPE).add("pipe", type=tarfile.FIFOTYPE)
    image = layout(tmp_path / "i", layer)
    work = tmp_path / "w"
    work.mkdir()
    path, note = flatten(image, look(image).settings.identity(), work)
    assert note == "1 layers; 1 device files are left out"
    with tarfile.open(path) as tar:
        assert "null" not in names(tar)
        assert text(tar, odd) == "1"
        assert tar.getmember("pipe").isfifo()


def test_sparse_files(tmp_path: Path) -> None:
    hole = tmp_path / "hole"
    with hole.open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    tar = subprocess.run(
        ["tar", "-C", str(tmp_path), "--sparse", "--format=gnu", "-cf", "-", "hole"],
        capture_output=True,
        check=True,
    ).stdout
    assert len(tar) < 1 << 20
    made = Layout(tmp_path / "i")
    with flat(made.index(made.manifest([tar])), tmp_path / "w") as found:
        data = found.extractfile("hole")
        assert data is not None
        assert data.read() == hole.read_bytes()


def test_paths_through_symlinks_stay_in_the_tree(tmp_path: Path) -> None:
    low = Layer().folder("usr/lib").symlink("lib", "usr/lib").symlink("up", "../../../usr")
    low.symlink("abs", "/usr").symlink("round", "round").symlink("hang", "/nowhere/x")
    high = Layer().add("lib/a").add("up/b").add("abs/c").add("round/d").add("hang/e")
    with flat(layout(tmp_path / "i", low, high), tmp_path / "w") as tar:
        found = names(tar)
        links = {member.name for member in tar if member.issym()}
    assert {"usr/lib/a", "usr/b", "usr/c", "round/d", "hang/e"} <= set(found)
    assert links == {"lib", "up", "abs"}
    assert not [name for name in found if any(name.startswith(f"{link}/") for link in links)]


# ---- what is refused ----


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (Layer().add("../x"), "leads out"),
        (Layer().add("a/../../x"), "leads out"),
        (Layer().add(".wh..."), None),
        (Layer().hardlink("a", "../etc/passwd"), "leads out"),
        (Layer().hardlink("a", "nowhere"), "is no file"),
        (Layer().folder("d").hardlink("a", "d"), "is no file"),
        (Layer().add("n" * 300), "longer than a name"),
        (Layer().add("/".join(["n" * 200] * 30)), "longer than a name"),
    ],
)
def test_hostile_entries(tmp_path: Path, layer: Layer, match: str | None) -> None:
    image = layout(tmp_path / "i", layer)
    if match is None:  # hides a name that cannot be
        with flat(image, tmp_path / "w") as tar:
            assert names(tar) == []
        return
    with pytest.raises(InvalidRequest, match=match):
        flat(image, tmp_path / "w")
    assert list((tmp_path / "w").iterdir()) == []


def test_lying_digests(tmp_path: Path) -> None:
    tar = Layer().add("a", "1").done()
    made = Layout(tmp_path / "i")
    path = made.index(made.manifest([tar]))
    blobs = sorted(path.glob("blobs/sha256/*"))
    for blob in blobs:
        right = blob.read_bytes()
        blob.write_bytes(right + b" ")
        with pytest.raises(InvalidRequest):
            flat(path, tmp_path / "w")
        blob.write_bytes(right)
    assert len(blobs) == 3
    flat(path, tmp_path / "fine").close()


def test_a_layer_that_is_not_what_the_config_says(tmp_path: Path) -> None:
    made = Layout(tmp_path / "i")
    one, two = Layer().add("a").done(), Layer().add("b").done()
    manifest = {"config": made.blob(config_of([one])), "layers": [made.blob(two)]}
    with pytest.raises(InvalidRequest, match="layer 1 whose tar is"):
        flat(made.index(made.blob(json.dumps(manifest).encode())), tmp_path / "w")
    manifest["layers"] = [manifest["layers"][0]] * 2  # type: ignore[index]
    with pytest.raises(InvalidRequest, match="has 2 layers; its config lists 1"):
        look(made.index(made.blob(json.dumps(manifest).encode())))


def test_an_image_that_changes_meanwhile(tmp_path: Path) -> None:
    image = layout(tmp_path / "i", Layer().add("a"))
    (tmp_path / "w").mkdir()
    with pytest.raises(InvalidRequest, match="has changed"):
        flatten(image, "0" * 64, tmp_path / "w")


def test_bombs(tmp_path: Path) -> None:
    made = Layout(tmp_path / "i")
    bomb = gzip.compress(bytes(32 << 20))
    assert len(bomb) < 1 << 16
    layer = made.blob(bomb)
    manifest = {"config": made.blob(config_of([bytes(32 << 20)])), "layers": [layer]}
    path = made.index(made.blob(json.dumps(manifest).encode()))
    with pytest.raises(LimitExceeded, match=r"over 8\.0 MiB"):
        flat(path, tmp_path / "w", most_bytes=8 << 20)
    assert list((tmp_path / "w").iterdir()) == []


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_layers_that_are_cut(tmp_path: Path, cut: int) -> None:
    made = Layout(tmp_path / "i")
    tar = Layer().add("a", "".join(map(str, range(2000)))).done()
    path = made.index(made.manifest([tar], pack=lambda data: gzip.compress(data)[:-cut]))
    with pytest.raises(InvalidRequest, match="layer 1"):
        flat(path, tmp_path / "w")


@pytest.mark.parametrize(
    "tar", [b"no tar at all" * 100, Layer().add("a", "x" * 4000).done()[:2000]]
)
def test_layers_that_are_no_tar(tmp_path: Path, tar: bytes) -> None:
    made = Layout(tmp_path / "i")
    with pytest.raises(InvalidRequest, match="layer 1"):
        flat(made.index(made.manifest([tar])), tmp_path / "w")


@pytest.mark.parametrize(
    "config",
    [
        {"Env": ["NOEQUALS"]},
        {"Env": "A=b"},
        {"User": "a b"},
        {"User": 5},
        {"WorkingDir": "/a/../../b"},
        {"Cmd": [1]},
        {"Entrypoint": "x"},
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        look(layout(tmp_path / "i", Layer().add("a"), **config))


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"manifest.json": "{"},
        {"manifest.json": "{}"},
        {"manifest.json": "[]"},
        {"manifest.json": "[" * 100_000},
        {"manifest.json": '[{"Config": "../../secret", "Layers": []}]'},
        {"oci-layout": "{}", "index.json": '{"manifests": [{"digest": "sha256:../../x"}]}'},
        {"oci-layout": "{}", "index.json": '{"manifests": []}'},
        {"oci-layout": "{}", "index.json": "[]"},
    ],
)
def test_what_is_no_image(tmp_path: Path, files: dict[str, str]) -> None:
    folder = tmp_path / "i"
    folder.mkdir()
    (tmp_path / "secret").write_text("{}")
    for name, content in files.items():
        (folder / name).write_text(content)
    with pytest.raises(InvalidRequest) as caught:
        look(folder)
    assert str(folder) in caught.value.message


def test_files_that_are_no_image(tmp_path: Path) -> None:
    path = tmp_path / "i.tar"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(InvalidRequest, match="neither a folder nor a tar"):
        look(path)
    path.write_bytes(gzip.compress(b"x"))
    with pytest.raises(InvalidRequest, match="compressed") as caught:
        look(path)
    assert f"gunzip {path}" in str(caught.value.hint)


# ---- recipes and registries ----


def recipe_of(tmp_path: Path, image: str, more: str = "") -> recipe.Recipe:
    path = tmp_path / "recipe.toml"
    path.write_text(f'name = "mine"\nimage = {json.dumps(image)}\n{more}')
    return recipe.load(path)


def test_a_recipe_takes_what_the_image_says_unless_it_says_otherwise(tmp_path: Path) -> None:
    layout(
        tmp_path / "i",
        Layer().add("a"),
        Env=["A=1", "B=1"],
        User="7",
        WorkingDir="/w",
        Cmd=["run it"],
    )
    made = recipe_of(tmp_path, "i", "[env]\nB = '2'\n")
    assert isinstance(made.image, Path)
    found = with_settings(made, look(made.image).settings)
    assert dict(found.env) == {"A": "1", "B": "2"}
    assert (found.default_user, found.default_cwd, found.command) == ("7", "/w", ("run it",))
    (start,) = found.files
    assert (start.target, start.mode) == ("/opt/torpor/bin/image-command", 0o755)
    assert start.content == "#!/bin/sh\nexec 'run it' \"$@\"\n"
    own = recipe_of(tmp_path, "i", 'default_user = "me"\ndefault_cwd = "/x"\n')
    own = with_settings(own, look(tmp_path / "i").settings)
    assert (own.default_user, own.default_cwd) == ("me", "/x")
    layout(tmp_path / "plain", Layer().add("a"))
    plain = with_settings(recipe_of(tmp_path, "plain"), look(tmp_path / "plain").settings)
    assert (plain.default_user, plain.default_cwd, plain.files) == ("root", "/workspace", ())


def test_the_digest_is_the_images_not_its_places(tmp_path: Path) -> None:
    def digest(image: str) -> str:
        made = with_settings(recipe_of(tmp_path, image), look(tmp_path / image).settings)
        return make_plan(made).recipe_digest

    layout(tmp_path / "a", Layer().add("x"))
    docker_archive(tmp_path / "b.tar", Layer().add("x"))
    layout(tmp_path / "c", Layer().add("y"))
    assert digest("a") == digest("b.tar") != digest("c")


@pytest.mark.parametrize("image", ["./nope", "/nope/nope.tar", "no such!", "-x", "a b:c"])
def test_images_that_are_not_there(tmp_path: Path, image: str) -> None:
    with pytest.raises(TorporError):
        recipe_of(tmp_path, image)


def test_a_registry_without_skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe_of(tmp_path, "docker://registry.test:5000/a/b:1")
    assert made.image == "registry.test:5000/a/b:1"
    monkeypatch.setattr(registry.shutil, "which", lambda _: None)
    with pytest.raises(HostNotReady, match="skopeo") as caught:
        asyncio.run(registry.settings(str(made.image)))
    assert "apt-get install skopeo" in str(caught.value.hint)


def test_a_registry_through_skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout(tmp_path / "far", Layer().add("a", "1"), User="7")
    tars = [Layer().add("a", "1").done()]
    (tmp_path / "config").write_bytes(config_of(tars, {"User": "7"}))
    tool = tmp_path / "skopeo"
    tool.write_text(
        "#!/bin/sh\n"
        '[ "$1 $2 $3 $4" = "--override-os linux --override-arch amd64" ] || exit 9\n'
        'case "$5" in\n'
        f'inspect) [ "$8" = docker://a/b:1 ] && cat {tmp_path}/config ;;\n'
        f'copy) to=${{8#oci:}}; cp -r {tmp_path}/far "${{to%:image}}" ;;\n'
        "esac || { echo no such image >&2; exit 1; }\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(registry.shutil, "which", lambda _: str(tool))
    found = asyncio.run(registry.settings("a/b:1"))
    assert found == look(tmp_path / "far").settings
    pulled = asyncio.run(registry.pull("a/b:1", tmp_path))
    assert look(pulled).settings.identity() == found.identity()
    with pytest.raises(NotFound, match="no such image"):
        asyncio.run(registry.settings("a/c:1"))
