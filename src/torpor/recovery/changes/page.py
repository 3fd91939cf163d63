"""A report as one HTML page that needs nothing else: no script, no font, no image, no address but its own.

All that is not ours is escaped. The page forbids itself to load anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from torpor.recovery.changes.words import visible

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--good:#1a7f37;--bad:#b42318;--open:#9a6700}
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.35rem}h2{font-size:1.05rem;margin:2rem 0 .4rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.35rem .6rem;
border-bottom:1px solid var(--line);overflow-wrap:anywhere}th{font-weight:600;white-space:nowrap}
code,pre{font:14px/1.45 ui-monospace,monospace;overflow-wrap:anywhere}pre{white-space:pre-wrap;border:1px solid
var(--line);border-radius:6px;padding:.6rem;max-height:32rem;overflow:auto}
.kept,.pass{color:var(--good)}.rolled_back,.failed,.fail{color:var(--bad)}.open,.inconclusive{color:var(--open)}
.badge{font-weight:700}ul{padding-left:1.2rem}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: Mapping[str, Any]) -> str:
    """Return the page of a report."""
    change = report["change"]
    mood = change["verdict"] or (change["state"] if change["ended_at"] else "open")
    parts = [
        f"<h1>{_text(report['headline'])}</h1>",
        f'<p class="badge {_text(mood)}">{_text(mood.replace("_", " "))}</p>',
        _facts(report),
        _list("Why", report["verdict_reasons"]),
        _list("What was seen", report["evidence"]),
        _probes(report["probes"]),
        _list("Checks that pass", report["passing"]),
        _inventory(report["inventory"]),
        _list("Warnings", report["warnings"]),
        _pre("The last lines", report["log_lines"]),
        _command(report["command"]),
        _steps(report["steps"]),
        _list("Cannot be undone", report["not_undone"]),
        _next(report["next"]),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{_text(change['id'])}</title>\n<style>{_STYLE}</style></head>\n<body>\n{body}\n"
        f"<p><small>Made {_text(report['made_at'])} by Torpor.</small></p>\n</body></html>\n"
    )


def _text(value: object) -> str:
    return escape(visible(str(value)), quote=True)


def _lines(value: str) -> str:
    return "\n".join(_text(line) for line in value.splitlines())


def _facts(report: Mapping[str, Any]) -> str:
    change, snapshot = report["change"], report["snapshot"] or {}
    rows = [
        ("Sandbox", change["sandbox_id"]),
        ("By", change["author"]),
        ("Target", change["target"]),
        ("Begun", change["created_at"]),
        ("Ended", change["ended_at"]),
        ("On probation until", change["deadline_at"]),
        ("Before it", snapshot and f"{snapshot['id']}, {snapshot['consistency']}-consistent"),
        ("Cursor before it", report["cursor"]),
        ("As it left the machine", report["failed_state"]),
        ("Now", report["put_back"]),
    ]
    return _table("", (), [row for row in rows if row[1]])


def _probes(probes: list[Mapping[str, Any]]) -> str:
    rows = [(probe["name"], _side(probe["before"]), _side(probe["after"])) for probe in probes]
    return _table("Checks, before and after", ("Check", "Before", "After"), rows)


def _side(side: Mapping[str, Any] | None) -> _Html:
    if side is None:
        return _Html("not there")
    found = f'<span class="{_text(side["outcome"])}">{_text(side["outcome"])}</span>: {_text(side["reason"])}'
    for finding in side["findings"]:
        found += (
            f"<br><small>{_text(finding['attribute'])}: wanted {_text(finding['wanted'])}, "
            f"found {_text(finding['found'])}</small>"
        )
    return _Html(found)


def _inventory(inventory: Mapping[str, Any] | None) -> str:
    if not inventory:
        return ""
    return _list("Not allowed to differ", inventory["forbidden"]) + _list(
        "What differs in the machine", inventory["sentences"]
    )


def _command(command: Mapping[str, Any] | None) -> str:
    if not command:
        return ""
    found = f"<h2>The command</h2><pre>{_lines(command['command'] or '')}</pre><p>{_text(command['why'])}</p>"
    for stream in ("stdout", "stderr"):
        tail = command[f"{stream}_tail"]
        if tail:
            found += f"<p>The end of {stream} ({command[f'{stream}_bytes']} bytes in all):</p><pre>{_lines(tail)}</pre>"
    return found


def _steps(steps: list[Mapping[str, Any]]) -> str:
    rows = [(s["name"], f"{s['duration_ms'] / 1000:.1f} s", s["outcome"]) for s in steps]
    return _table("Steps", ("Step", "Took", "Outcome"), rows)


def _next(steps: list[Mapping[str, Any]]) -> str:
    rows = [(s["words"], _Html(f"<code>{_text(s['command'])}</code>")) for s in steps]
    return _table("What to do next", (), rows)


def _list(title: str, items: Iterable[str]) -> str:
    found = "".join(f"<li>{_text(item)}</li>" for item in items)
    return f"<h2>{_text(title)}</h2><ul>{found}</ul>" if found else ""


def _pre(title: str, lines: list[str]) -> str:
    text = "\n".join(_text(line) for line in lines)
    return f"<h2>{_text(title)}</h2><pre>{text}</pre>" if text else ""


class _Html(str):
    """Text that is HTML already; all else is escaped."""

    __slots__ = ()


def _table(title: str, head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    body = ""
    for first, *rest in rows:
        cells = "".join(f"<td>{c if isinstance(c, _Html) else _text(c)}</td>" for c in rest)
        body += f'<tr><th scope="row">{_text(first)}</th>{cells}</tr>'
    if not body:
        return ""
    top = "".join(f"<th>{_text(name)}</th>" for name in head)
    found = f"<h2>{_text(title)}</h2>" if title else ""
    return f"{found}<table>{f'<tr>{top}</tr>' if top else ''}{body}</table>"
