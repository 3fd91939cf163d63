"""Agent profiles: the shipped ones, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from torpor.errors import InvalidRequest, NotFound
from torpor.recovery.profiles import load_profile, parse_profile, shipped, shipped_names
from torpor.recovery.profiles.document import BYTES_MOST

HEAD = "format: 1\nname: mine\n"


def test_the_shipped_ones() -> None:
    assert shipped_names() == ("agent-zero", "hermes", "machine", "openclaw")
    for name in shipped_names():
        profile = shipped(name)
        assert profile.name == name
        assert profile.title
        assert profile.description
    for name in ("agent-zero", "hermes", "openclaw"):
        profile = shipped(name)
        assert profile.detect
        assert profile.homes
        assert {"skills", "tools", "models", "jobs", "memory", "channels"} <= set(profile.sources)
        assert profile.freeze_units
        assert profile.versions
        assert profile.cursor
        assert profile.quiesce


def test_what_hermes_must_never_have_changed() -> None:
    (settings,) = shipped("hermes").sources["settings"]
    wanted = {"model.provider", "model.default", "model.base_url", "model.api_key", "moa"}
    assert wanted <= set(settings.only)
    assert settings.show == ()
    turn = shipped("hermes").turn
    assert turn
    assert turn.command.timeout_seconds == 180


def test_rules_for_a_declared_change() -> None:
    hermes = shipped("hermes")
    assert hermes.rules_for()["skills"] == "superset"
    assert hermes.rules_for()["versions"] == "equal"
    assert hermes.rules_for("update")["versions"] == "may-change"
    assert hermes.rules_for("update")["jobs"] == "equal"
    assert hermes.rules_for("update")["settings"] == "equal"
    assert hermes.rules_for("model")["settings"] == "may-change"
    assert hermes.rules_for("no such kind") == hermes.rules_for()
    assert "sqlite.size_bytes" not in hermes.rules_for("update"), "the wider rule takes all of it"


def test_by_name_path_and_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{HEAD}watch: [/etc/mine]\n")
    by_path = load_profile(file)
    assert by_path.watch == ("/etc/mine",)
    assert load_profile(str(file)) == by_path
    assert load_profile(file.read_text()) == by_path
    assert load_profile("hermes") == shipped("hermes")
    assert by_path.digest != shipped("hermes").digest
    with pytest.raises(NotFound, match="shipped: agent-zero, hermes"):
        _hinted("hermess")
    with pytest.raises(NotFound, match="no profile file"):
        load_profile(tmp_path / "none.yaml")
    with pytest.raises(InvalidRequest, match="no name"):
        load_profile("../hermes".replace("/", "|"))


def _hinted(name: str) -> None:
    try:
        load_profile(name)
    except NotFound as exc:
        raise NotFound(f"{exc.message} {exc.hint}") from exc


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "1:1", "empty"),
        ("- a\n", "1:1", "a mapping is wanted"),
        ("name: mine\n", "1:1", "the key 'format' is missing"),
        ("format: 2\nname: mine\n", "1:9", "reads format 1"),
        ("format: 1\n", "1:1", "the key 'name' is missing"),
        ("format: 1\nname: Mine!\n", "2:7", "'Mine!' cannot be"),
        (f"{HEAD}colour: red\n", "3:9", "there is no key 'colour'"),
        (f"{HEAD}name: twice\n", "3:1", "there twice"),
        (f"{HEAD}watch:\n  - /a\n  - /a/../b\n", "5:5", "watch[1]"),
        (f"{HEAD}watch: [~/x]\n", "3:9", "'~' is not taken"),
        (f"{HEAD}watch: ['/a**/b']\n", "3:9", "'**'"),
        (f"{HEAD}homes: [relative]\n", "3:9", "not absolute"),
        (f"{HEAD}processes: ['(']\n", "3:13", "no regular expression"),
        (f"{HEAD}processes: ['x{{{'9' * 20}}}']\n", "3:13", "no regular expression"),
        (f"{HEAD}processes: ['{'(' * 1800}{')' * 1800}']\n", "3:13", "no regular expression"),
        (f'{HEAD}title: "\\ud800"\n', "3:11", "Unicode"),
        (f"{HEAD}title: \ud800\n", "3:8", "a character"),
        (f"{HEAD}title: a\0b\n", "3:9", "a character"),
        (f"{HEAD}services: [thing]\n", "3:12", "cannot be"),
        (f"{HEAD}sources:\n  spells: []\n", "4:11", "there is no key 'spells'"),
        (f"{HEAD}sources:\n  skills:\n    - at: /x\n", "5:7", "exactly one of folders"),
        (f"{HEAD}sources:\n  skills:\n    - {{folders: a, at: /x}}\n", "5:24", "only documents"),
        (f"{HEAD}sources:\n  jobs:\n    - {{json: a.json, at: jobs}}\n", "5:26", "cannot be"),
        (f"{HEAD}sources:\n  jobs:\n    - {{json: a.json, fields: 7}}\n", "5:30", "true or false"),
        (f"{HEAD}versions: [{{name: a}}]\n", "3:12", "exactly one of command, file, git"),
        (f"{HEAD}versions: [{{name: a, file: b}}]\n", "3:12", "exactly one of pattern, at"),
        (f"{HEAD}turn: {{expect: x}}\n", "3:7", "'command' is missing"),
        (f"{HEAD}turn: {{command: x, timeout_seconds: -1}}\n", "3:37", "a number from 0.1"),
        (f"{HEAD}quiesce: [{{name: a, kind: magic}}]\n", "3:27", "'magic' is not known"),
        (f"{HEAD}quiesce: [{{name: a, kind: command}}]\n", "3:11", "prepare, hold or release"),
        (f"{HEAD}rules: {{spells: equal}}\n", "3:17", "no kind 'spells'"),
        (f"{HEAD}rules: {{skills: same}}\n", "3:17", "'same' is not known"),
        (f"{HEAD}may_change: {{update: [spells]}}\n", "3:22", "no kind 'spells'"),
        (f"{HEAD}cursor: {{}}\n", "3:9", "exactly one of command, file"),
        (f"{HEAD}watch: &a [/x]\nexclude: *a\n", "3:8", "anchors"),
        (f"{HEAD}watch: !!python/name:os.system [x]\n", "3:8", "tags"),
        (f"{HEAD}watch: {'[' * 30}{']' * 30}\n", "3:27", "nested"),
        (f"{HEAD}watch: [\n", "4:1", ""),
        (f"{HEAD}watch: 'a\n", "4:1", ""),
        ("format: 1\nname: null\n", "2:7", "a text is wanted"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, where: str, what: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_profile(text, source="my.yaml")
    assert str(caught.value).startswith(f"my.yaml:{where}: "), str(caught.value)
    assert what in str(caught.value)


def test_a_profile_too_long() -> None:
    with pytest.raises(InvalidRequest, match="longer than 256 KiB"):
        parse_profile(f"{HEAD}description: {'x' * BYTES_MOST}\n", source="my.yaml")
    with pytest.raises(InvalidRequest, match="more than 200 items"):
        parse_profile(f"{HEAD}watch: [{', '.join(f'/a{n}' for n in range(201))}]\n", source="m")
