"""The agent's own memory, for programs in the machine: `torpor-memory`, and `import torpor_memory` in Python.

One file of the standard library alone. What each verb takes and answers is that of the REST API under `/v1/memory`
(docs/reference/rest.md), without the fields that name a space: this machine has one, and reaches no other.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

SOCKET = "/run/torpor/memory.sock"
TIMEOUT_S = 660.0
_READS = frozenset(
    [
        "recall",
        "explain",
        "why_not",
        "facts",
        "fact",
        "episode",
        "episodes",
        "unread",
        "history",
        "timeline",
        "diff",
        "conflicts",
        "effects",
    ]
)


class MemoryRefused(Exception):
    """Raised when a request was refused, or cannot be known to have been carried out (`code` `memory.lost`)."""

    def __init__(self, body: dict[str, Any]) -> None:
        hint = body.get("hint")
        super().__init__(f"{body.get('error')}{f' ({hint})' if hint else ''}")
        self.code = str(body.get("code"))
        self.retryable = bool(body.get("retryable"))


class Memory:
    """The memory of this machine's agent. Each call is a connection of its own; safe for threads."""

    def __init__(self, path: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path or os.environ.get("TORPOR_MEMORY_SOCKET", SOCKET)
        self._timeout_s = timeout_s

    def call(self, verb: str, **params: Any) -> Any:
        """Make a call. What only reads is asked again once if the machine was put down or back meanwhile.

        Raises:
            MemoryRefused: the host refused it, or its outcome is not known.
            OSError: there is no memory in this machine.
        """
        try:
            return self._once(verb, params)
        except MemoryRefused as refused:
            if refused.code == "memory.lost" and (verb in _READS or verb == "files.view"):
                return self._once(verb, params)
            raise

    def _once(self, verb: str, params: dict[str, Any]) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout_s)
            connection.connect(self._path)
            connection.sendall(
                json.dumps({"id": 1, "verb": verb, "params": params}).encode() + b"\n"
            )
            with connection.makefile("rb") as answers:
                line = answers.readline()
        if not line:
            lost = {"error": "the agent of this machine left", "code": "memory.lost"}
            raise MemoryRefused({**lost, "retryable": True})
        answer = json.loads(line)
        if "error" in answer:
            raise MemoryRefused(answer["error"])
        return answer["ok"]

    def record(self, content: str, source_kind: str = "agent", **more: Any) -> Any:
        """Keep what happened, verbatim; return the episode."""
        return self.call("record", content=content, source_kind=source_kind, **more)

    def remember(self, subject: str, attribute: str, value: Any, **more: Any) -> Any:
        """Claim a fact; return the one that now stands. `scope="machine"` for what goes back with this machine."""
        return self.call("remember", subject=subject, attribute=attribute, value=value, **more)

    def recall(self, query: str, **more: Any) -> Any:
        """Return what holds about something: `items`, `suppressed`, `abstained`."""
        return self.call("recall", query=query, **more)

    def facts(self, subject: str | None = None, attribute: str | None = None, **more: Any) -> Any:
        """Return the facts that hold."""
        return self.call("facts", subject=subject, attribute=attribute, **more)["items"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `torpor-memory` and return its exit code: 0; 1 if the memory refused; 2 if there is none."""
    given = _parser().parse_args(arguments)
    try:
        answer = Memory().call(given.verb, **given.params(given))
    except MemoryRefused as refused:
        sys.stderr.write(f"torpor-memory: {refused}\n")
        return 1
    except OSError as exc:
        sys.stderr.write(f"torpor-memory: this machine has no memory: {exc}\n")
        return 2
    sys.stdout.write(given.show(answer) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torpor-memory", description="What the agent of this machine knows."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="keep what happened; `-` reads stdin")
    record.add_argument("content")
    record.add_argument("--from", dest="source_kind", default="agent", help="user, agent, tool, …")
    record.add_argument("--session", default="")
    _does(record, "record", lambda g: {"content": _text(g.content), "source_kind": g.source_kind, "session": g.session})  # fmt: skip
    remember = commands.add_parser("remember", help="claim a fact")
    for name in ("subject", "attribute", "value"):
        remember.add_argument(name)
    remember.add_argument("--scope", default="world", help="world, machine or task")
    remember.add_argument("--many", action="store_true", help="it may have many values at once")
    _does(remember, "remember", _fact)
    recall = commands.add_parser("recall", help="say what holds about something")
    recall.add_argument("query")
    recall.add_argument("-k", type=int, default=8)
    _does(recall, "recall", lambda g: {"query": g.query, "k": g.k}, _recalled)
    facts = commands.add_parser("facts", help="list the facts that hold")
    facts.add_argument("subject", nargs="?")
    facts.add_argument("attribute", nargs="?")
    _does(facts, "facts", lambda g: {"subject": g.subject, "attribute": g.attribute}, _listed)
    view = commands.add_parser("view", help="print a file or folder below /memories")
    view.add_argument("path", nargs="?", default="/memories")
    _does(view, "files.view", lambda g: {"path": g.path}, lambda answer: str(answer["text"]))
    write = commands.add_parser("write", help="write a file below /memories; `-` reads stdin")
    write.add_argument("path")
    write.add_argument("file_text")
    _does(write, "files.create", lambda g: {"path": g.path, "file_text": _text(g.file_text)}, lambda answer: str(answer["text"]))  # fmt: skip
    call = commands.add_parser("call", help="make any call: a verb, and its parameters as JSON")
    call.add_argument("verb")
    call.add_argument("json", nargs="?", default="{}")
    call.set_defaults(params=lambda g: json.loads(_text(g.json)), show=_json)
    return parser


def _does(command: Any, verb: str, params: Any, show: Any = None) -> None:
    command.add_argument("--json", action="store_true", help="print the whole answer")
    command.set_defaults(
        verb=verb, params=params, show=_json if show is None or "--json" in sys.argv else show
    )


def _fact(given: Any) -> dict[str, Any]:
    return {
        "subject": given.subject,
        "attribute": given.attribute,
        "value": given.value,
        "scope": given.scope,
        "cardinality": "many" if given.many else "one",
    }


def _text(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _json(answer: Any) -> str:
    return json.dumps(answer, indent=1)


def _recalled(answer: Any) -> str:
    lines = [f"{item['text']}  ({item['note']})" for item in answer["items"]]
    return "\n".join(lines) or f"nothing: {answer['abstained']}"


def _listed(answer: Any) -> str:
    rows = [f"{f['subject']}  {f['attribute']}  {json.dumps(f['value'])}" for f in answer["items"]]
    return "\n".join(rows) or "nothing is held to be true"


if __name__ == "__main__":
    sys.exit(main())
