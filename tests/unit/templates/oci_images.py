"""Container images made in a test: layers entry by entry, written as layouts and as `docker save` does."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Layer:
    """One layer's tar."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by `done`

    def add(self, name: str, text: str = "", **changes: Any) -> Layer:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(text.encode()), 0o644
        for key, value in changes.items():
            setattr(info, key, value)
        self._tar.addfile(info, io.BytesIO(text.encode()))
        return self

    def folder(self, name: str, mode: int = 0o755) -> Layer:
        return self.add(name, type=tarfile.DIRTYPE, mode=mode)

    def symlink(self, name: str, target: str) -> Layer:
        return self.add(name, type=tarfile.SYMTYPE, linkname=target)

    def hardlink(self, name: str, target: str) -> Layer:
        return self.add(name, type=tarfile.LNKTYPE, linkname=target)

    def done(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def config_of(tars: list[bytes], config: dict[str, Any] | None = None, **top: Any) -> bytes:
    value = {
        "os": "linux",
        "architecture": "amd64",
        "config": config or {},
        "rootfs": {"type": "layers", "diff_ids": [sha(tar) for tar in tars]},
    }
    return json.dumps(value | top).encode()


class Layout:
    """An OCI layout folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "blobs/sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, data: bytes) -> dict[str, Any]:
        digest = sha(data)
        (self.path / "blobs/sha256" / digest.removeprefix("sha256:")).write_bytes(data)
        return {"digest": digest, "size": len(data)}

    def manifest(
        self,
        tars: list[bytes],
        config: dict[str, Any] | None = None,
        *,
        pack: Callable[[bytes], bytes] = gzip.compress,
        **top: Any,
    ) -> dict[str, Any]:
        manifest = {
            "schemaVersion": 2,
            "config": self.blob(config_of(tars, config, **top)),
            "layers": [self.blob(pack(tar)) for tar in tars],
        }
        return self.blob(json.dumps(manifest).encode())

    def index(self, *entries: dict[str, Any]) -> Path:
        (self.path / "index.json").write_text(json.dumps({"manifests": list(entries)}))
        return self.path


def layout(path: Path, *layers: Layer, **config: Any) -> Path:
    """Write an image as a layout folder."""
    made = Layout(path)
    return made.index(made.manifest([layer.done() for layer in layers], config))


def docker_archive(path: Path, *layers: Layer, **config: Any) -> Path:
    """Write an image as `docker save` did before it wrote layouts."""
    tars = [layer.done() for layer in layers]
    data = config_of(tars, config)
    name = f"{hashlib.sha256(data).hexdigest()}.json"
    with tarfile.open(path, "w") as tar:

        def put(entry: str, content: bytes) -> None:
            info = tarfile.TarInfo(entry)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

        names, first = [], {}
        for number, content in enumerate(tars):
            entry = f"{number}/layer.tar"
            if content in first:
                info = tarfile.TarInfo(entry)
                info.type, info.linkname = tarfile.SYMTYPE, f"../{first[content]}"
                tar.addfile(info)
            else:
                put(entry, content)
                first[content] = entry
            names.append(entry)
        put(name, data)
        put("manifest.json", json.dumps([{"Config": name, "Layers": names}]).encode())
    return path
