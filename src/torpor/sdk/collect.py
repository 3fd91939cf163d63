"""Gathers what a command writes, for both faces of the SDK."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from torpor.errors import CommandLost, OperationTimeout, TorporError
from torpor.model import ExecEnded, ExecEvent, ExecOutput
from torpor.sdk.results import ExecResult, exec_result, output_text

OUTPUT_LIMIT_BYTES = 1 << 20

TextCallback = Callable[[str], object]


class Collector:
    """Keeps the first bytes of each stream and hands all of it, as text, to callbacks."""

    def __init__(
        self,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
        *,
        on_stdout: TextCallback | None = None,
        on_stderr: TextCallback | None = None,
    ) -> None:
        self._limit = limit_bytes
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._total = {"stdout": 0, "stderr": 0}
        self._callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}
        self.result: ExecResult | None = None
        """Set when the command has ended."""

    def add(self, event: ExecEvent) -> None:
        """Take in one event."""
        if isinstance(event, ExecOutput):
            kept = self._kept[event.stream]
            kept += event.data[: max(0, self._limit - len(kept))]
            self._total[event.stream] += len(event.data)
            self._tell(event.stream, self._decoders[event.stream].decode(event.data))
        elif isinstance(event, ExecEnded):
            for stream, decoder in self._decoders.items():
                self._tell(stream, decoder.decode(b"", final=True))
            self.result = exec_result(
                event.info, bytes(self._kept["stdout"]), bytes(self._kept["stderr"])
            )

    def _tell(self, stream: str, text: str) -> None:
        callback = self._callbacks[stream]
        if callback is not None and text:
            callback(text)

    def explain(self, error: TorporError) -> None:
        """Give an error that ended the command what it wrote until then."""
        if not isinstance(error, (OperationTimeout, CommandLost)):
            return
        for stream, kept in self._kept.items():
            total = error.facts.get(f"{stream}_bytes")
            path = error.facts.get(f"{stream}_path")
            error.facts[stream] = output_text(
                bytes(kept),
                total if isinstance(total, int) else self._total[stream],
                path if isinstance(path, str) else "",
            )
