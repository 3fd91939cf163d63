"""Checks files: what is read, and how every mistake is told."""

from __future__ import annotations

import json

import pytest

from torpor.errors import InvalidRequest, LimitExceeded
from torpor.recovery.checks import CheckPlan, parse_checks
from torpor.recovery.checks.matchers import Matcher

ISSUE = """\
required: {file: {/root/agent.conf: {exists: true}}, command: {"grep -q model /root/agent.conf": {exit-status: 0}}}
"""


def parse(text: str) -> CheckPlan:
    return parse_checks(text, source="checks.yaml")


def test_the_smallest_file() -> None:
    plan = parse(ISSUE)
    file, command = plan.checks
    assert (file.group, file.kind, file.name) == ("required", "file", "/root/agent.conf")
    assert file.wants == {"exists": Matcher("equal", True)}
    assert (command.kind, command.target) == ("command", "grep -q model /root/agent.conf")
    assert command.wants == {"exit-status": Matcher("equal", 0)}
    assert plan.folders
    assert CheckPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_required_come_first_and_defaults_hold_for_all() -> None:
    plan = parse(
        """
wanted:
  process: {cron: }
required:
  port: {tcp:8080: {ip: [127.0.0.1], timeoutSeconds: 2}}
defaults: {periodSeconds: 1, timeoutSeconds: 3.5, failureThreshold: 4}
folders: false
"""
    )
    port, process = plan.checks
    assert (port.group, process.group) == ("required", "wanted")
    assert (port.timing.timeout_seconds, process.timing.timeout_seconds) == (2, 3.5)
    assert port.timing.failure_threshold == process.timing.failure_threshold == 4
    assert set(port.wants) == {"listening", "ip"}
    assert not plan.folders


def test_json_is_yaml_too() -> None:
    text = json.dumps({"required": {"command": {"true": {"stdout": ["a", "!b"], "timeout": 1500}}}})
    (check,) = parse(text).checks
    assert check.timing.timeout_seconds == 1.5
    assert [part.operator for part in check.wants["stdout"].parts] == ["pattern", "no-pattern"]


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("required:\n  fil: {/x: {exists: true}}", 2, 3, "the key 'fil', which is not known"),
        ("requires: {}", 1, 1, "the key 'requires', which is not known"),
        ("required:\n  file:\n    /x: {exits: true}", 3, 10, "the key 'exits', which is not known"),
        ("required:\n  file:\n    /x: {exists: perhaps}", 3, 18, "is 'perhaps'; wanted true or false"),
        ("required:\n  file:\n    /x: {mode: 999}", 3, 16, "wanted octal digits"),
        ("required:\n  file:\n    x: {exists: true}", 3, 5, "'x' is no absolute path"),
        ("required:\n  file:\n    /x: {filetype: folder}", 3, 20, "wanted one of file, directory"),
        ("required:\n  file:\n    /x: {sha256: abc}", 3, 18, "wanted 64 hexadecimal digits"),
        ("required:\n  file:\n    /x:\n    /x:\n", 4, 5, "'/x' stands here a second time; the first is in line 3"),
        ("# üüüü\n# ü\nrequired:\n  a\0b: 1\n", 4, 4, "a character that YAML may not have"),
        ("required: {\"\ud800\": 1}", 1, 13, "a character that YAML may not have"),
        ("---\n...\n", 2, 1, "the file is empty"),
        ("required:\n  file: {}\n  file: {}\n", 3, 3, "'file' stands here a second time"),
        ("required: [file]", 1, 11, "is a list; wanted a mapping"),
        ("required: {command: {x: {exit-status: one}}}", 1, 39, "is 'one'; wanted a whole number"),
        ("required: {command: {x: {exit-status: 010}}}", 1, 39, "wanted a whole number"),
        ("required: {command: {x: {stdout: [/(/]}}}", 1, 35, "no regular expression"),
        ("required: {command: {x: {stdout: {match: a}}}}", 1, 35, "the key 'match', which is not known"),
        ("required: {command: {x: {stdout: {not: a, and: []}}}}", 1, 34, "wanted one matcher"),
        ("required: {command: {x: {timeoutSeconds: 0}}}", 1, 42, "wanted a number from 0.1 to 3600"),
        ("required: {command: {x: {timeout: 5, timeoutSeconds: 1}}}", 1, 35, "are both given"),
        ("required: {command: {x: {failureThreshold: 1.5}}}", 1, 44, "wanted a whole number from 1 to 100"),
        ("required: {port: {8080: }}", 1, 19, "'8080' is no port"),
        ("required: {port: {tcp:70000: }}", 1, 19, "is no port"),
        ("required: {service: {cron: {}}}", 1, 28, "wants nothing"),
        ("required: {http: {localhost: {status: 200}}}", 1, 19, "'localhost' is no URL"),
        ("required: {http: {http://x: {method: get}}}", 1, 38, "an HTTP method in capitals"),
        ("required: {http: {http://x: {request-headers: ['a\\r\\nb']}}}", 1, 47, "headers such as"),
        ("required: {sqlite: {/x: {min-rows: {t: -1}}}}", 1, 40, "wanted a whole number from 0"),
        ("required: {inventory: {skills: equals}}", 1, 32, "wanted one of equal, superset, may-change"),
        ("required: {inventory: {skill: equal}}", 1, 24, "there is no kind 'skill' in an inventory"),
        ("required: {inventory: {skill: {rule: equal}}}", 1, 24, "there is no kind 'skill'"),
        ("required: {inventory: {skills: {}}}", 1, 32, "has no rule"),
        ("required: {turn: {t: {control: {}}}}", 1, 32, "exactly one of command and http"),
        ("required: {turn: {t: {outage: {exit-status: 0}}}}", 1, 45, "wanted a whole number from 1 to 255"),
        ("required:\n\tfile: {}", 2, 1, "this is not YAML"),
        ("required: {file: {/x: {exists: true}}", 2, 1, "this is not YAML"),
        ("a: b\n---\nc: d", 2, 1, "a second document"),
        ("required: &a {file: *a}", 1, 21, "the alias *a is not taken"),
        ("required: !!python/object:os.system {}", 1, 11, "is not taken"),
        ("required: {file: {/x: !!set {a}}}", 1, 23, "is not taken"),
        ("required: {? [a] : b}", 1, 14, "a key has to be a text"),
        ("\n\nrequired: \"\x07\"", 3, 12, "this is not YAML"),
        ("", 1, 1, "the file is empty"),
        ("required: {}", 1, 1, "there is no check in it"),
        ("required: " + "[" * 40 + "]" * 40, 1, 26, "nested deeper than 16"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(text: str, line: int, column: int, said: str) -> None:
    with pytest.raises(InvalidRequest) as told:
        parse(text)
    assert told.value.message.startswith(f"checks.yaml:{line}:{column}: "), told.value.message
    assert said in told.value.message
    assert (told.value.facts["line"], told.value.facts["column"]) == (line, column)


def test_the_nearest_key_is_named() -> None:
    with pytest.raises(InvalidRequest) as told:
        parse("required: {command: {x: {exit_status: 0}}}")
    assert told.value.hint == "did you mean 'exit-status'?"


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("required:\n  file:\n\t/x: {}", "3:1", "with spaces, never with tabs"),
        ("# a file of goss\nfile:\n  /x: {exists: true}", "2:1", "put it below `required`"),
    ],
)
def test_common_mistakes_have_a_hint(text: str, place: str, hint: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^checks.yaml:{place}: ") as told:
        parse(text)
    assert hint in (told.value.hint or "")


def test_a_file_that_is_too_large() -> None:
    with pytest.raises(LimitExceeded, match="at most 262144"):
        parse("required: {command: {x: {title: '" + "a" * 300_000 + "'}}}")
    many = "\n".join(f"    c{n}: " for n in range(501))
    with pytest.raises(LimitExceeded, match="501 checks"):
        parse(f"required:\n  command:\n{many}\n")


def test_a_bomb_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(InvalidRequest, match=r"checks\.yaml:2:10: the alias"):
        parse("\n".join(lines))


def test_only_the_folders() -> None:
    assert parse("folders: true").checks == ()
    with pytest.raises(InvalidRequest, match="no check in it"):
        parse("folders: false")


def test_the_old_name_of_contents() -> None:
    (check,) = parse("required: {file: {/x: {contains: [a]}}}").checks
    assert set(check.wants) == {"contents", "exists"}
