"""Ages, spans and what a guest says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from torpor.cli import databases, output, templates
from torpor.cli.output import age, left, pairs, span, visible, waiting
from torpor.errors import InvalidRequest
from torpor.model import BuildEvent
from torpor.model_databases import DatabaseStep


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.9, "1 min"),
        (89, "1 min"),
        (3599.9, "1 h"),
        (7199, "2 h"),
        (86399, "1 d"),
        (90000, "1 d"),
        (172000, "2 d"),
    ],
)
def test_span(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_age_and_left() -> None:
    now = datetime.now(UTC)
    assert age(now - timedelta(hours=5, minutes=1)) == "5 h"
    assert left(now + timedelta(minutes=5, seconds=5)) == "in 5 min"
    assert left(now - timedelta(seconds=5)) == "due"
    assert left(None) == "never"


def test_visible() -> None:
    assert visible("plain é €") == "plain é €"
    assert visible("a\x1b[0m\nb\r\x9b") == r"a\x1b[0m\nb\r\x9b"
    assert visible("a\nb\x07", keep_lines=True) == "a\nb\\x07"
    assert visible("raw\udcff") == "raw\udcff"


def test_pairs() -> None:
    assert pairs(["a=1", "b=", "c=d=e"], "--env") == {"a": "1", "b": "", "c": "d=e"}
    for wrong in ("a", "=1", ""):
        with pytest.raises(InvalidRequest, match="KEY=VALUE"):
            pairs([wrong], "--env")


def test_a_build_that_waits_for_another_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(templates, "stderr_is_terminal", lambda: False)
    with templates.build_progress() as progress:
        for step, message in (
            ("plan", "recipe base is 0123"),
            ("plan", "another process builds the same recipe; waiting"),
            ("packages", "1 of 9"),
            ("packages", "2 of 9"),
        ):
            progress(BuildEvent(step=step, message=message, fraction=0.1))
    assert capsys.readouterr().err.splitlines() == [
        "plan: recipe base is 0123",
        "plan: another process builds the same recipe; waiting",
        "packages: 1 of 9",
    ]


def test_what_takes_a_while_is_shown_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with waiting("dumping shop"):
        pass
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(output, "stderr_is_terminal", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with waiting("dumping \x1b[31m[shop]"):
        pass
    told = capsys.readouterr()
    assert (told.out, "\x1b[31m" in told.err, "[shop]" in told.err) == ("", False, True)


def test_each_step_of_a_template_is_one_line_of_a_database(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with databases._progress() as progress:
        for message in ("plan: recipe", "packages: reading", "packages: 5 of 90", "boot: it"):
            progress(DatabaseStep("template", message))
        for message in ("giving it one", "giving it one", "giving it another"):
            progress(DatabaseStep("password", message))
    assert capsys.readouterr().err.splitlines() == [
        "template: plan: recipe",
        "template: packages: reading",
        "template: boot: it",
        "password: giving it one",
        "password: giving it another",
    ]
