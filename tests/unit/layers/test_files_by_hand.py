"""The program of docs/how-to/recover.md that gets a disk out of a home with nothing of ours but the files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RECOVER = Path(__file__).parents[3] / "docs/how-to/recover.md"
KIB_64 = 64 << 10
SIZE = 8 * KIB_64


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a template's disk: eight parts, each full of the letter A."""
    home = tmp_path / "home"
    for name in ("templates/digest", "layers", "snapshots/snap_x"):
        (home / name).mkdir(parents=True)
    (home / "templates/digest/disk.raw").write_bytes(b"A" * SIZE)
    return home


def _qcow2(home: Path, layer: str, part: int, letter: str) -> None:
    path = home / "layers" / f"{layer}.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, str(SIZE)], check=True)
    write = f"write -q -P {ord(letter)} {part * KIB_64} {KIB_64}"
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", write, path], check=True)


def _raw(home: Path, layer: str, letters: str) -> None:
    data = "".join(letter * KIB_64 for letter in letters)
    (home / "layers" / f"{layer}.raw").write_text(data)


def _unused(home: Path, layer: str) -> None:
    with (home / "layers" / f"{layer}.raw").open("wb") as file:
        file.truncate(SIZE)


def _out(home: Path, layers: list[str]) -> str:
    """Return the letters of the disk that the program makes."""
    manifest = {
        "snapshot": {"template_digest": "digest"},
        "disk": [{"id": name} for name in layers],
    }
    (home / "snapshots/snap_x/manifest.json").write_text(json.dumps(manifest))
    (program,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", RECOVER.read_text(), re.DOTALL)
        if "qemu-img" in block
    )
    out = home / "out.raw"
    argv = [sys.executable, "-c", program, "snap_x", str(out)]
    subprocess.run(argv, check=True, env=os.environ | {"TORPOR_HOME": str(home)}, timeout=60)
    parts = [out.read_bytes()[n * KIB_64 : (n + 1) * KIB_64] for n in range(8)]
    assert all(len(set(part)) == 1 for part in parts)
    return "".join(chr(part[0]) for part in parts)


def test_layers_of_qemu_lie_over_each_other(home: Path) -> None:
    _qcow2(home, "lyr_1", 1, "B")
    _qcow2(home, "lyr_2", 2, "C")
    assert _out(home, []) == "AAAAAAAA"
    assert _out(home, ["lyr_1", "lyr_2"]) == "ABCAAAAA"


def test_a_layer_of_firecracker_is_a_whole_disk(home: Path) -> None:
    _qcow2(home, "lyr_1", 1, "B")
    _raw(home, "lyr_2", "DDDDDDDD")
    _unused(home, "lyr_3")
    assert _out(home, ["lyr_1", "lyr_2", "lyr_3"]) == "DDDDDDDD"
    _qcow2(home, "lyr_4", 4, "E")
    assert _out(home, ["lyr_1", "lyr_2", "lyr_4"]) == "DDDDEDDD"


def test_what_was_merged_stands_for_its_layers(home: Path) -> None:
    _qcow2(home, "lyr_m", 1, "M")
    _qcow2(home, "lyr_3", 3, "C")
    note = {"id": "lyr_m", "replaces": ["lyr_1", "lyr_2"]}
    (home / "layers/lyr_m.merged").write_text(json.dumps(note))
    assert _out(home, ["lyr_1", "lyr_2", "lyr_3"]) == "AMACAAAA"
