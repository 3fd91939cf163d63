"""Shows a change as it goes on: what the daemon does and finds on stderr, its command's output too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torpor.cli.output import left, visible

if TYPE_CHECKING:
    from torpor.model_changes import ChangeEvent, ChangeInfo

_LOUD = frozenset({"fail", "warn", "inconclusive"})


class Progress:
    """Prints events once each, also when a daemon that was restarted tells some again."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._state = ""
        self._next: dict[str, int] = {"stdout": 0, "stderr": 0}
        self._is_mid_line = False

    def __call__(self, event: ChangeEvent) -> None:
        """Show an event."""
        if self._quiet:
            return
        if event.name == "output":
            self._output(event.data)
        elif event.name == "state":
            from torpor.model_changes import ChangeInfo

            self._said(ChangeInfo.from_json(event.data))
        elif event.name == "step":
            self._line(f"  {visible(str(event.data['message']))}")
        elif event.data["outcome"] in _LOUD or event.data["phase"] == "after":
            data = event.data
            self._line(
                f"  {data['outcome']:<12} {visible(data['name'])}: {visible(data['reason'])}"
            )

    def _said(self, info: ChangeInfo) -> None:
        if info.state in (self._state, "idle"):  # what has not begun does nothing
            return
        self._state = info.state
        self._line(f"{info.id}  {info.state.replace('_', ' ')}")
        if info.deadline_at is not None and info.state == "probation":
            ends = (
                f"it is rolled back {left(info.deadline_at)} unless you confirm it: torpor confirm {info.id}"
                if info.require_confirm
                else f"it is kept {left(info.deadline_at)} if all is still well"
            )
            self._line(f"  {ends}")

    def _output(self, data: Any) -> None:
        stream, chunk, offset = data["stream"], str(data["chunk"]), int(data["offset"])
        if offset < self._next[stream]:
            return
        self._next[stream] = offset + 1
        print(
            visible(chunk.replace("\r\n", "\n"), keep_lines=True),
            end="",
            file=sys.stderr,
            flush=True,
        )
        self._is_mid_line = not chunk.endswith("\n")

    def _line(self, text: str) -> None:
        if self._is_mid_line:
            print(file=sys.stderr)
            self._is_mid_line = False
        print(text, file=sys.stderr, flush=True)
