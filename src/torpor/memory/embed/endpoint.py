"""Any endpoint that answers `POST …/embeddings` in the OpenAI form."""

from __future__ import annotations

from collections.abc import Sequence

from torpor.errors import HostNotReady, InvalidRequest

_BATCH = 128


class Endpoint:
    """Vectors from a server. Its answers are checked for count and length before they are kept."""

    def __init__(
        self,
        url: str,
        model: str,
        dim: int,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        transport: object | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"{url!r} is no HTTP address")
        self.model = f"{model}@{url}"
        self.dim = dim
        self._url = f"{url.rstrip('/')}/embeddings"
        self._name = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._transport = transport

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return one unit vector a text, as float16 bytes.

        Raises:
            HostNotReady: the endpoint does not answer, or not in the OpenAI form.
        """
        found: list[bytes] = []
        for start in range(0, len(texts), _BATCH):
            found += self._ask(list(texts[start : start + _BATCH]))
        return found

    def _ask(self, texts: list[str]) -> list[bytes]:
        import httpx
        import numpy as np

        try:
            with httpx.Client(
                timeout=self._timeout_s,
                transport=self._transport,  # type: ignore[arg-type]  # httpx is imported late
                headers=self._headers,
            ) as client:
                answer = client.post(self._url, json={"model": self._name, "input": texts})
                answer.raise_for_status()
                data = sorted(answer.json()["data"], key=lambda d: d["index"])
                rows = np.array([d["embedding"] for d in data], np.float32)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as exc:
            raise HostNotReady(
                f"the embedding endpoint {self._url} failed: {exc}",
                hint="check its address, model and key",
                is_away=_is_away(exc),
            ) from exc
        if rows.shape != (len(texts), self.dim):
            raise HostNotReady(
                f"{self._url} gave vectors of shape {rows.shape}, not ({len(texts)}, {self.dim})"
            )
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        return [row.astype(np.float16).tobytes() for row in rows]


def _is_away(exc: Exception) -> bool:
    """Return whether the endpoint may answer later: nobody is there, it is too slow, or it has trouble of its own."""
    import httpx

    if isinstance(exc, httpx.HTTPStatusError):
        return exc.response.status_code >= 500 or exc.response.status_code == 429
    return isinstance(exc, httpx.TransportError)
