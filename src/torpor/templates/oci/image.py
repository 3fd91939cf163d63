"""What an image is: its layers and how it wants to be run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torpor.errors import InvalidRequest
from torpor.templates.oci.source import Named, Source, open_source, parse_json, read_small, wrong

LAYERS_MOST = 200
_DEPTH_MOST = 4
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SAVE_HINT = "write it with docker save or skopeo, or give a root file system with --rootfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an image wants its programs to be run."""

    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    """A name or a uid in the guest; empty: root."""
    cwd: str = ""
    """An absolute path; empty: the image does not say."""
    command: tuple[str, ...] = ()
    """ENTRYPOINT and CMD, joined."""
    diff_ids: tuple[str, ...] = ()
    """SHA-256 of each layer's tar, the lowest first."""

    def identity(self) -> str:
        """Return a digest of all that decides what comes of the image; equal for every way of storing it."""
        plain = [self.diff_ids, sorted(self.env.items()), self.user, self.cwd, self.command]
        return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's file in the source."""

    name: str
    digest: str | None
    """Of the file as it is stored; None: only the `diff_id` is known."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a source."""

    settings: Settings
    layers: tuple[Layer, ...]


def look(path: Path) -> Image:
    """Return the image at `path`: a layout folder, a layout as a tar, or what `docker save` writes. Blocks.

    Raises:
        InvalidRequest: it is none of those, is damaged, has no image for linux/amd64 or more than one.
    """
    source = open_source(path)
    try:
        return look_in(source)
    finally:
        source.close()


def look_in(source: Source) -> Image:
    """As `look`, in a source that is open."""
    if source.has("oci-layout") and source.has("index.json"):
        return _of_layout(source)
    if source.has("manifest.json"):
        return _of_docker(source)
    raise wrong(source, "has neither oci-layout with index.json nor manifest.json", hint=_SAVE_HINT)


def _of_layout(source: Source) -> Image:
    index = _table(source, "index.json", read_small(source, "index.json"))
    manifest = _choose(source, index, 0)
    config = _table(source, "the config", _blob(source, manifest.get("config")))
    layers = manifest.get("layers")
    if not isinstance(layers, list):
        raise wrong(source, "has a manifest without layers")
    found = [_digest(source, layer) for layer in layers]
    return _image(source, config, [Layer(_blob_name(digest), digest) for digest in found])


def _choose(source: Source, index: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
    """Return the one manifest for linux/amd64 below an index."""
    entries = index.get("manifests")
    if not isinstance(entries, list) or depth > _DEPTH_MOST:
        raise wrong(source, "has an index without manifests, or indexes in a circle")
    fitting = [entry for entry in entries if isinstance(entry, dict) and _fits(entry)]
    if len({str(entry.get("digest")) for entry in fitting}) != 1:
        shown = ", ".join(sorted({_shown(entry) for entry in entries})[:10]) or "nothing"
        raise wrong(
            source,
            f"has {len(fitting)} images for linux/amd64; exactly one is wanted (it has {shown})",
            hint="write one image alone, for this platform",
        )
    table = _table(source, "a manifest", _blob(source, fitting[0]))
    return _choose(source, table, depth + 1) if "manifests" in table else table


def _fits(entry: Mapping[str, Any]) -> bool:
    platform = entry.get("platform")
    if not isinstance(platform, dict):
        return True
    return platform.get("os") == "linux" and platform.get("architecture") == "amd64"


def _shown(entry: object) -> str:
    platform = entry.get("platform") if isinstance(entry, dict) else None
    if not isinstance(platform, dict):
        return "one without a platform"
    return f"{str(platform.get('os'))[:20]}/{str(platform.get('architecture'))[:20]}"


def _of_docker(source: Source) -> Image:
    listed = parse_json(source, "manifest.json", read_small(source, "manifest.json"))
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise wrong(source, "has a manifest.json that is no list of images", hint=_SAVE_HINT)
    if len(listed) != 1:
        raise wrong(
            source, f"has {len(listed)} images; exactly one is wanted", hint="docker save one"
        )
    config_name, names = listed[0].get("Config"), listed[0].get("Layers")
    if not isinstance(config_name, str) or not isinstance(names, list):
        raise wrong(source, "has a manifest.json without Config or Layers", hint=_SAVE_HINT)
    data = read_small(source, config_name)
    stated = re.search(r"[0-9a-f]{64}", config_name)
    if stated is not None and hashlib.sha256(data).hexdigest() != stated[0]:
        raise wrong(source, f"has {config_name}, whose content has another digest")
    config = _table(source, config_name, data)
    layers = [Layer(name, None) for name in names if isinstance(name, str)]
    return _image(source, config, layers)


def _image(source: Source, config: Mapping[str, Any], layers: list[Layer]) -> Image:
    settings = settings_of(config, source)
    if len(settings.diff_ids) != len(layers):
        raise wrong(source, f"has {len(layers)} layers; its config lists {len(settings.diff_ids)}")
    return Image(settings, tuple(layers))


def settings_of(config: Mapping[str, Any], source: Named) -> Settings:
    """Return the settings in an image's config. Raises `InvalidRequest`: it is malformed."""
    system = (config.get("os", "linux"), config.get("architecture", "amd64"))
    if system != ("linux", "amd64"):
        raise wrong(
            source,
            f"is for {str(system[0])[:20]}/{str(system[1])[:20]}; linux/amd64 is wanted",
            hint="docker pull --platform linux/amd64",
        )
    rootfs, how = config.get("rootfs"), config.get("config") or {}
    ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(ids, list) or not isinstance(how, dict) or not 0 < len(ids) <= LAYERS_MOST:
        raise wrong(source, f"has a config without 1 to {LAYERS_MOST} layers in rootfs.diff_ids")
    for item in ids:
        if not isinstance(item, str) or _DIGEST.fullmatch(item) is None:
            raise wrong(source, f"has the diff_id {str(item)[:80]!r}; sha256 is wanted")
    command = (*_texts(source, how, "Entrypoint"), *_texts(source, how, "Cmd"))
    return Settings(
        env=_env(source, how),
        user=_user(source, how.get("User") or ""),
        cwd=_cwd(source, how.get("WorkingDir") or ""),
        command=command,
        diff_ids=tuple(ids),
    )


def _env(source: Named, how: Mapping[str, Any]) -> dict[str, str]:
    env = {}
    for item in _texts(source, how, "Env"):
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise wrong(source, f"has {item[:60]!r} in Env; NAME=VALUE is wanted")
        env[name] = value
    return env


def _user(source: Named, value: object) -> str:
    user = value.partition(":")[0] if isinstance(value, str) else None
    if user is None or (user and _USER.fullmatch(user) is None):
        raise wrong(source, f"has the user {str(value)[:60]!r}; a name or a uid is wanted")
    return user


def _cwd(source: Named, value: object) -> str:
    if not isinstance(value, str) or "\0" in value or ".." in value.split("/"):
        raise wrong(source, f"has the working directory {str(value)[:80]!r}")
    return f"/{value.strip('/')}" if value else ""


def _texts(source: Named, how: Mapping[str, Any], key: str) -> list[str]:
    value = how.get(key) or []
    if not isinstance(value, list) or not all(isinstance(v, str) and "\0" not in v for v in value):
        raise wrong(source, f"has a config whose {key} is no list of strings")
    return list(value)


def _table(source: Named, name: str, data: bytes) -> Mapping[str, Any]:
    value = parse_json(source, name, data)
    if not isinstance(value, dict):
        raise wrong(source, f"has {name}, which is no table")
    return value


def _digest(source: Named, descriptor: object) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise wrong(source, f"names the digest {str(digest)[:80]!r}; sha256 is wanted")
    return digest


def _blob_name(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _blob(source: Source, descriptor: object) -> bytes:
    digest = _digest(source, descriptor)
    data = read_small(source, _blob_name(digest))
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise InvalidRequest(
            f"the image {source.path} has a blob whose content is not {digest}",
            hint="copy it again",
            path=source.path,
        )
    return data
