"""A template on disk: a folder named by its digest, complete when it has `manifest.json`.

See docs/formats/template.md. Pointers (`NAME.json` beside the folders) give a digest its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from torpor.base.fsio import allocated_bytes, read_json, write_json
from torpor.base.ids import check_name
from torpor.base.sparse import sparse_sha256
from torpor.errors import DataDamaged, NotFound
from torpor.model import TemplateInfo
from torpor.templates.missing import no_template

FORMAT = 1
DISK, KERNEL, INITRD = "disk.raw", "vmlinuz", "initrd"
FILES = (DISK, KERNEL, INITRD)
MANIFEST = "manifest.json"

CMDLINE = " ".join(
    (
        "console=ttyS0",
        "root=/dev/vda",
        "rw",
        "quiet",
        "net.ifnames=0",  # the one network card is eth0, whatever its place on the bus
        "panic=-1",  # QEMU runs with a reset as its end, so a panic ends the machine at once
        "random.trust_cpu=on",
        "mitigations=off",  # they guard the guest's users from each other; here the machine is the wall
        "audit=0",
        "apparmor=0",
        "selinux=0",
        "8250.nr_uarts=1",
        "rcupdate.rcu_expedited=1",
    )
)
"""Kernel command line of every template made by this version; the manifest keeps it."""

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A template and its files."""

    info: TemplateInfo
    disk: Path
    kernel: Path
    initrd: Path
    cmdline: str
    recipe_digest: str = ""
    """Digest of what it was made from; `info.digest` differs from it only for a forced second build."""


def template_at(
    folder: Path, info: TemplateInfo, recipe_digest: str, cmdline: str = CMDLINE
) -> Template:
    """Return the template whose files are in `folder`."""
    return Template(
        info=info,
        recipe_digest=recipe_digest,
        disk=folder / DISK,
        kernel=folder / KERNEL,
        initrd=folder / INITRD,
        cmdline=cmdline,
    )


def write_manifest(folder: Path, template: Template) -> None:
    """Write the manifest of finished files, with their sizes and SHA-256; blocks for some seconds."""
    info = template.info
    files = {}
    for name in FILES:
        path = folder / name
        files[name] = {
            "size_bytes": path.stat().st_size,
            "allocated_bytes": allocated_bytes(path),
            "sparse_sha256": sparse_sha256(path),
        }
    write_json(
        folder / MANIFEST,
        {
            "format": FORMAT,
            "name": info.name,
            "description": info.description,
            "digest": info.digest,
            "recipe_digest": template.recipe_digest,
            "created_at": info.created_at.isoformat(),
            "vcpus": info.vcpus,
            "ram_mib": info.ram_mib,
            "disk_gib": info.disk_gib,
            "default_user": info.default_user,
            "default_cwd": info.default_cwd,
            "env": dict(info.env),
            **({"command": list(info.command)} if info.command else {}),
            "cmdline": template.cmdline,
            "files": files,
        },
        mode=0o400,
    )


def read_template(folder: Path) -> Template:
    """Return the template in `folder`.

    Raises:
        NotFound: there is no complete template.
        DataDamaged: its manifest is not one, or a file is missing or has another size.
    """
    path = folder / MANIFEST
    fields = _Fields(read_json(path, limit_bytes=1 << 20), path)
    if fields.number("format") != FORMAT:
        raise DataDamaged(
            f"{path} has format {fields.number('format')}; this version reads {FORMAT}",
            hint="build the template again",
        )
    if fields.text("digest") != folder.name:
        raise DataDamaged(f"{path} describes {fields.text('digest')}, not {folder.name}")
    files = fields.table("files")
    size_bytes = 0
    for name in FILES:
        entry = _Fields(files.get(name), path)
        try:
            found = (folder / name).stat().st_size
        except FileNotFoundError as exc:
            raise DataDamaged(f"{folder / name} is missing", path=folder / name) from exc
        if found != entry.number("size_bytes"):
            raise DataDamaged(
                f"{folder / name} has {found} bytes; its manifest says {entry.number('size_bytes')}"
            )
        size_bytes += entry.number("allocated_bytes")
    info = TemplateInfo(
        name=check_name(fields.text("name"), "template"),
        description=fields.text("description"),
        digest=fields.text("digest"),
        created_at=fields.time("created_at"),
        vcpus=fields.number("vcpus"),
        ram_mib=fields.number("ram_mib"),
        disk_gib=fields.number("disk_gib"),
        size_bytes=size_bytes,
        default_user=fields.text("default_user"),
        default_cwd=fields.text("default_cwd"),
        env={key: str(value) for key, value in fields.table("env").items()},
        command=fields.texts("command"),
    )
    return template_at(folder, info, fields.text("recipe_digest"), fields.text("cmdline"))


def verify(folder: Path) -> Template:
    """Return the template in `folder` after comparing every file with its digest; reads all of them.

    Raises:
        NotFound, DataDamaged: as `read_template`, or a file has other content than was written.
    """
    template = read_template(folder)
    path = folder / MANIFEST
    files = _Fields(read_json(path, limit_bytes=1 << 20), path).table("files")
    for name in FILES:
        wanted = _Fields(files.get(name), path).text("sparse_sha256")
        found = sparse_sha256(folder / name)
        if found != wanted:
            raise DataDamaged(
                f"{folder / name} has digest {found}; its manifest says {wanted}",
                hint="build the template again, with --force",
                path=folder / name,
            )
    return template


def write_pointer(templates: Path, name: str, digest: str) -> None:
    """Let `name` mean the template `digest`, durably."""
    write_json(templates / f"{name}.json", {"format": FORMAT, "digest": digest})


def read_pointer(templates: Path, name: str) -> str:
    """Return the digest that `name` means.

    Raises:
        NotFound: there is no such name.
        DataDamaged: the pointer is not one.
    """
    path = templates / f"{name}.json"
    try:
        fields = _Fields(read_json(path, limit_bytes=4096), path)
    except NotFound as exc:
        raise no_template(name, [found.stem for found in templates.glob("[!.]*.json")]) from exc
    digest = fields.text("digest")
    if not is_digest(digest):
        raise DataDamaged(f"{path} points to {digest!r}, which is no digest", path=path)
    return digest


def is_digest(text: str) -> bool:
    """Return whether `text` can name a template's folder."""
    return len(text) == 64 and _HEX.issuperset(text)


class _Fields:
    """Typed access to JSON of unknown shape; everything wrong is `DataDamaged`."""

    def __init__(self, value: object, path: Path) -> None:
        self._path = path
        if not isinstance(value, dict):
            raise DataDamaged(f"{path} is not a table", path=path)
        self._value: Mapping[str, object] = value

    def text(self, name: str) -> str:
        found = self._value.get(name)
        if not isinstance(found, str):
            raise self._wrong(name, "text")
        return found

    def number(self, name: str) -> int:
        found = self._value.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self._wrong(name, "a number")
        return found

    def table(self, name: str) -> Mapping[str, object]:
        found = self._value.get(name)
        if not isinstance(found, dict):
            raise self._wrong(name, "a table")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._value.get(name, [])
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self._wrong(name, "a list of texts")
        return tuple(found)

    def time(self, name: str) -> datetime:
        try:
            return datetime.fromisoformat(self.text(name)).astimezone(UTC)
        except ValueError as exc:
            raise self._wrong(name, "a time") from exc

    def _wrong(self, name: str, wanted: str) -> DataDamaged:
        return DataDamaged(
            f"{self._path}: {name} is {self._value.get(name)!r}; wanted {wanted}", path=self._path
        )
