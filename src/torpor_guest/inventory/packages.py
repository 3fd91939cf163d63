"""Installed packages, read from where the package managers keep their lists: no program is started."""

from __future__ import annotations

import json
import os
import re
from functools import partial

from torpor_guest.inventory.budget import Section
from torpor_guest.inventory.content import Reader
from torpor_guest.inventory.walk import Found, Walker

_STATUS_MOST = 32 << 20
_PACKAGE_JSON_MOST = 1 << 20
_STANZA = re.compile(rb"^(Package|Status|Version|Architecture):[ \t]*(.*)$", re.MULTILINE)
_DIST = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*?)(?:-(?P<version>[0-9][^-]*|[^-]+))?(?:-py[0-9.]+)?\.(?:dist|egg)-info"
)
_SITES = ("lib/python*/site-packages", "lib/python*/dist-packages", "lib64/python*/site-packages")


def debian(walker: Walker, reader: Reader, section: Section) -> None:
    """List the installed Debian packages."""
    for found in walker.glob("/var/lib/dpkg/status", section):
        try:
            packages = reader.cache.of_file("dpkg", found, partial(_debian, reader, found))
        except OSError as exc:
            section.cut(f"{found.path} cannot be read: {exc.strerror}")
            return
        for name, version in packages:
            section.add(name, {"version": version})


def _debian(reader: Reader, found: Found) -> list[tuple[str, str]]:
    packages = []
    for stanza in reader.read(found, _STATUS_MOST).split(b"\n\n"):
        fields = dict(_STANZA.findall(stanza))
        if fields.get(b"Status", b"").endswith(b" installed"):
            name, version = fields.get(b"Package", b""), fields.get(b"Version", b"")
            packages.append((name, version, fields.get(b"Architecture", b"")))
    seen: dict[bytes, int] = {}
    for name, _, _ in packages:
        seen[name] = seen.get(name, 0) + 1
    return [
        (_text(name if seen[name] == 1 else b"%s:%s" % (name, arch)), _text(version))
        for name, version, arch in packages
    ]


def python(walker: Walker, reader: Reader, section: Section, patterns: list[str]) -> None:
    """List the distributions in each Python environment: a folder with lib/python*/site-packages."""
    done: set[tuple[int, int]] = set()
    for pattern in patterns:
        for site in _SITES:
            for found in walker.glob(f"{pattern}/{site}", section):
                identity = (found.stat.st_dev, found.stat.st_ino)
                if not found.is_folder or identity in done:
                    continue
                done.add(identity)
                environment = re.sub(r"/lib(?:64)?/python[^/]*/[^/]+$", "", found.path)
                for name, version in _distributions(reader, found, section):
                    section.add(f"{name} ({environment})", {"version": version})
    for found in walker.glob("/root/.local/share/uv/python/*", section):
        _interpreter(found, section)
    for found in walker.glob("/home/*/.local/share/uv/python/*", section):
        _interpreter(found, section)


def _interpreter(found: Found, section: Section) -> None:
    if found.is_folder and "-" in found.name and not found.name.startswith("."):
        name, _, rest = found.name.partition("-")
        version, _, platform = rest.partition("-")
        section.add(
            f"{name} {version} ({os.path.dirname(found.path)})",
            {"version": version, "platform": platform},
        )


def _distributions(reader: Reader, found: Found, section: Section) -> list[tuple[str, str | None]]:
    """Return names and versions; the list of a folder whose time has not changed is not read again."""

    def read() -> list[tuple[str, str | None]]:
        fd = os.open(
            found.name,
            os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
            dir_fd=found.folder,
        )
        try:
            names = os.listdir(fd)
        finally:
            os.close(fd)
        matches = (_DIST.fullmatch(name) for name in names)
        return sorted(
            {(_normal(m["name"]), m["version"]) for m in matches if m},
            key=lambda item: (item[0], item[1] or ""),
        )

    try:
        return reader.cache.of_file("python", found, read)
    except OSError as exc:
        section.cut(f"{found.path} cannot be listed: {exc.strerror}")
        return []


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def npm(walker: Walker, reader: Reader, section: Section, patterns: list[str]) -> None:
    """List the packages in each node_modules folder, not those below them."""
    done: set[str] = set()
    for pattern in patterns:
        for middle in ("*", "@*/*"):
            for found in walker.glob(f"{pattern}/{middle}/package.json", section):
                if found.path not in done and found.is_file:
                    done.add(found.path)
                    _npm_package(found, reader, section)


def _npm_package(found: Found, reader: Reader, section: Section) -> None:
    folder = os.path.dirname(found.path)
    root, _, name = folder.rpartition("/node_modules/")
    try:
        version = reader.cache.of_file("npm", found, lambda: _npm_version(reader, found))
    except OSError as exc:
        section.note(f"{found.path} cannot be read: {exc.strerror}")
        section.add(f"{name} ({root}/node_modules)", unknown=["version"])
        return
    section.add(f"{name} ({root}/node_modules)", {"version": version})


def _npm_version(reader: Reader, found: Found) -> str | None:
    try:
        value = json.loads(reader.read(found, _PACKAGE_JSON_MOST))
    except (ValueError, RecursionError):
        return None
    version = value.get("version") if isinstance(value, dict) else None
    return version if isinstance(version, str) else None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()
