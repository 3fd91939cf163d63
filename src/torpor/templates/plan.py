"""What one build does: the recipe, all that its digest is made of, and where packages come from."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import stat
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torpor.base.units import GIB
from torpor.errors import BuildFailed, HostNotReady
from torpor.templates.dockerfile.made import Dockerfile
from torpor.templates.manifest import Template
from torpor.templates.mirror import Mirror, choose
from torpor.templates.recipe import Recipe, as_plain

BUILDER_VERSION = 2
"""Part of every digest; raised when an image would come out otherwise from the same recipe."""

HOSTNAME = "sandbox"

_IMAGE = Path(__file__).parent / "image"
_IMAGE_ROOTFS = Path(__file__).parent / "image_rootfs"
_KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """One build, decided."""

    recipe: Recipe
    recipe_digest: str
    """SHA-256 (hex) over the recipe with its parents, its files, the guest agent and the builder."""
    agent: Path
    """Folder with the guest agent's sources."""
    mirror: Mirror
    kernel: Path | None = None
    """Folder with the kernel and the initrd for a recipe that has none of its own; only with a `rootfs` or an `image`."""

    parent: Template | None = None
    """The template that a Dockerfile builds on; its disk is copied."""
    dockerfile: Dockerfile | None = None
    """Steps for the machine of the first boot."""

    @property
    def disk_bytes(self) -> int:
        """Size of the root disk."""
        return self.recipe.disk_gib * GIB

    def packages(self) -> tuple[str, ...]:
        """Return the packages to install."""
        sudo = ("sudo",) if any(user.sudo for user in self.recipe.users) else ()
        return tuple(dict.fromkeys((*self.recipe.packages, *sudo)))

    def for_inside(self) -> dict[str, object]:
        """Return what `inside.py` is told."""
        recipe = self.recipe
        main, security = self.mirror.for_guest()
        return {
            "agent": str(self.agent),
            "system": str(_IMAGE / "root"),
            "masked": masked_units(),
            "hostname": HOSTNAME,
            "users": [{"name": u.name, "uid": u.uid, "sudo": u.sudo} for u in recipe.users],
            "files": [
                {
                    "target": f.target,
                    "content": f.content,
                    "source": str(f.source) if f.source else None,
                    "mode": f.mode,
                    "owner": f.owner,
                }
                for f in recipe.files
            ],
            "run": list(recipe.run),
            "image": {
                "env": dict(recipe.env),
                "default_user": recipe.default_user,
                "default_cwd": recipe.default_cwd,
            },
            "default_user": recipe.default_user,
            "default_cwd": recipe.default_cwd,
            "apt_sources": guest_sources(recipe.suite, main, security),
            "disk_bytes": self.disk_bytes,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """How far a step of the bootstrap is."""

    step: str
    """`packages`, `unpack`, `files`, `run` or `image`."""
    message: str
    share: float
    """0.0 to 1.0 of this step."""


class Bootstrapper(Protocol):
    """Makes `disk.raw`, `vmlinuz` and `initrd` in the folder `out` from a plan; a fake one serves the tests.

    When it ends, however it ends, none of its processes and mounts is left. Of what it wrote below `work`
    the caller takes `out` and removes the rest.

    Raises:
        HostNotReady: a tool or key is missing.
        InsufficientResources: the disk is full.
        InvalidRequest: the recipe asks for a package that does not exist.
        BuildFailed: anything else; facts have the step and the end of the log.
    """

    def __call__(self, plan: BuildPlan, work: Path, out: Path) -> AsyncGenerator[Step, None]:
        """Begin; the steps come as they go on."""
        ...


def make_plan(recipe: Recipe) -> BuildPlan:
    """Return the plan for a recipe. Reads all files that go into the image, so call it in a thread."""
    agent = agent_sources()
    return BuildPlan(
        recipe=recipe,
        recipe_digest=digest(recipe, agent),
        agent=agent,
        mirror=choose(),
    )


def agent_sources() -> Path:
    """Return the folder of the guest agent's package.

    Raises:
        BuildFailed: it is not part of this install.
    """
    spec = importlib.util.find_spec("torpor_guest")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if Path(place, "torpor-agent.service").is_file():
            return Path(place)
    raise BuildFailed(
        "the guest agent (package torpor_guest) is not part of this install",
        hint="install torpor again",
        step="plan",
    )


def digest(recipe: Recipe, agent: Path) -> str:
    """Return the digest of all that decides what is in the image."""
    hasher = hashlib.sha256()
    plain = json.dumps(as_plain(recipe), sort_keys=True, separators=(",", ":"))
    _add(hasher, f"builder {BUILDER_VERSION}", plain.encode())
    if recipe.has_tree:
        if recipe.rootfs is not None:
            _add(hasher, "rootfs", _content(recipe.rootfs))
        for name, path in _tree(_IMAGE_ROOTFS):
            _add(hasher, f"image_rootfs {name}", _content(path))
        _add(hasher, "inside_rootfs", _content(Path(__file__).parent / "inside_rootfs.py"))
    for file in recipe.files:
        if file.source is not None:
            for name, path in _tree(file.source):
                mode = stat.S_IMODE(path.lstat().st_mode)
                _add(hasher, f"file {file.target} {name} {mode:o}", _content(path))
    for label, folder in (("agent", agent), ("image", _IMAGE), ("code", Path(__file__).parent)):
        for name, path in _tree(folder):
            if label != "code" or name in ("inside.py", "initrd.py", "cpio.py"):
                _add(hasher, f"{label} {name}", _content(path))
    return hasher.hexdigest()


def masked_units() -> list[str]:
    """Return the units that the image masks."""
    lines = (_IMAGE / "masked").read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def guest_sources(suite: str, main: str, security: str) -> str:
    """Return the guest's own apt sources."""
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    rolling = suite in ("sid", "unstable")
    text = f"Types: deb\nURIs: {main}\nSuites: {suite}{'' if rolling else f' {suite}-updates'}\n"
    text += f"Components: main\nSigned-By: {keyring}\n"
    if not rolling:
        text += f"\nTypes: deb\nURIs: {security}\nSuites: {suite}-security\n"
        text += f"Components: main\nSigned-By: {keyring}\n"
    return text


def find_keyring() -> Path:
    """Return the file with Debian's archive keys.

    Raises:
        HostNotReady: it is not installed.
    """
    for path in _KEYRINGS:
        if path.is_file():
            return path
    raise HostNotReady(
        "the keys of Debian's archive are not installed, so its packages cannot be checked",
        hint="run: sudo apt-get install debian-archive-keyring",
    )


def _add(hasher: hashlib._Hash, label: str, content: bytes) -> None:
    hasher.update(f"{label}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
    hasher.update(content)


def _tree(top: Path) -> Iterator[tuple[str, Path]]:
    """Yield relative name and path of every file and symlink below `top`, or of `top` itself, by name."""
    if not top.is_dir():
        yield "", top
        return
    for root, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        links = [name for name in folders if Path(root, name).is_symlink()]
        for name in sorted((*files, *links)):
            if not name.endswith(".pyc"):
                path = Path(root, name)
                yield str(path.relative_to(top)), path


def _content(path: Path) -> bytes:
    if path.is_symlink():
        return os.fsencode(path.readlink())
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
