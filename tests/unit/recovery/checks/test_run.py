"""Runs: attempts and delays, the three verdicts, what a machine that is away means, cancellation."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fakes.probe import Answer, TableProbe, ran
from torpor.errors import (
    CheckFailed,
    CheckInconclusive,
    GuestFailed,
    GuestUnreachable,
    HostNotReady,
    InvalidRequest,
    WrongState,
)
from torpor.model_checks import CheckReport, CheckResult
from torpor.model_inventory import Entry, Inventory, Section
from torpor.recovery.checks import TurnSpec, parse_checks, run_checks
from torpor.recovery.checks.baseline import Baseline


def run(text: str, answers: dict[str, Any] | None = None, **kwargs: Any) -> CheckReport:
    return run_on(TableProbe(answers), text, **kwargs)


def run_on(probe: TableProbe, text: str, **kwargs: Any) -> CheckReport:
    async def at_once(seconds: float) -> None:
        slept.append(seconds)

    slept: list[float] = kwargs.pop("slept", [])
    plan = parse_checks(text, source="checks.yaml")
    report = asyncio.run(run_checks(plan, probe, sleep=at_once, sandbox_id="sbx_1", **kwargs))
    assert CheckReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    return report


def only(report: CheckReport) -> CheckResult:
    (result,) = report.results
    return result


def one(
    check: str, answers: dict[str, Any] | None = None, group: str = "required", **kwargs: Any
) -> CheckResult:
    return only(run(f"folders: false\n{group}: {{{check}}}", answers, **kwargs))


def test_a_command() -> None:
    good = one("command: {probe: {stdout: [ok]}}", {"probe": ran(0, "all ok\n")})
    assert (good.outcome, good.attempts, good.output) == ("pass", 1, "all ok")
    bad = one("command: {probe: {stdout: [ok]}}", {"probe": ran(3, "no", "why\n")})
    assert bad.outcome == "fail"
    assert bad.reason == "exit-status: found 3; wanted 0 (and 1 more)"
    assert bad.output == "no\nwhy"
    assert [(f.attribute, f.outcome) for f in bad.findings] == [
        ("exit-status", "fail"),
        ("stdout", "fail"),
    ]


def test_a_command_that_hangs_or_cannot_start() -> None:
    hung = one("command: {x: {timeout: 500}}", {"x": ran(137, "begun", timed_out=True)})
    assert (hung.outcome, hung.reason) == ("fail", "it did not end within 0.5 s and was killed")
    assert hung.output == "begun"
    refused = one(
        "command: {x: {user: nobody-here}}", {"x": InvalidRequest("no user 'nobody-here'")}
    )
    assert (refused.outcome, refused.reason) == (
        "fail",
        "the machine refused: no user 'nobody-here'",
    )


def test_output_that_was_cut_is_no_proof_of_absence() -> None:
    cut = {"x": ran(0, "found it", stdout_is_cut=True)}
    assert one("command: {x: {stdout: [found]}}", cut).outcome == "pass"
    assert one("command: {x: {stdout: [other]}}", cut).outcome == "inconclusive"
    assert one("command: {x: {stdout: ['!other']}}", cut).outcome == "inconclusive"


def test_attempts_until_the_threshold() -> None:
    slept: list[float] = []
    check = "command: {x: {failureThreshold: 3, periodSeconds: 7, initialDelaySeconds: 2}}"
    result = one(check, {"x": [ran(1), ran(1), ran(0)]}, slept=slept)
    assert (result.outcome, result.attempts) == ("pass", 3)
    assert slept == [2, 7, 7]
    assert one(check, {"x": ran(1)}).attempts == 3


def test_passes_in_a_row() -> None:
    check = "command: {x: {successThreshold: 3, failureThreshold: 2}}"
    steady = one(check, {"x": [ran(0), ran(1), ran(0), ran(0), ran(0)]})
    assert (steady.outcome, steady.attempts) == ("pass", 5)
    flapping: list[Answer] = [ran(0), ran(1)] * 50
    assert one(check, {"x": flapping}).attempts == 4


def test_verdicts() -> None:
    text = "folders: false\nrequired: {command: {a: , b: }}\nwanted: {command: {c: }}"
    good, bad, away = ran(0), ran(1), GuestUnreachable("cut")
    assert run(text, {"a": good, "b": good, "c": bad}).verdict == "pass"
    assert run(text, {"a": good, "b": bad, "c": good}).verdict == "fail"
    report = run(text, {"a": away, "b": good, "c": good, "true": good})
    assert report.verdict == "inconclusive"
    assert report.results[-1].key == "required/machine:answers"
    assert run(text, {"a": away, "b": bad, "c": good, "true": good}).verdict == "fail"
    warned = run(text, {"a": good, "b": good, "c": bad})
    assert warned.sentence == "pass: 2 of 2 required checks pass, 1 warned"
    assert [result.status for result in warned.results] == ["pass", "pass", "warn"]


def test_what_a_verdict_raises() -> None:
    text = "folders: false\nrequired: {command: {a: }}"
    assert run(text, {"a": ran(0)}).check().verdict == "pass"
    with pytest.raises(CheckFailed, match="required/command:a: exit-status: found 1") as told:
        run(text, {"a": ran(1)}).check()
    assert told.value.facts["checks"] == ["required/command:a"]
    with pytest.raises(CheckInconclusive, match="nothing required was looked at"):
        run("folders: false\nwanted: {command: {a: }}", {"a": ran(0)}).check()


def test_a_dead_machine_is_a_failure() -> None:
    report = run("folders: false\nrequired: {command: {a: }}", {"": GuestUnreachable("cut")})
    assert report.verdict == "fail"
    assert [result.outcome for result in report.results] == ["inconclusive", "fail"]
    assert report.results[-1].attempts == 3


def test_a_machine_that_is_taken_away_has_no_report() -> None:
    with pytest.raises(WrongState, match="it sleeps"):
        run("folders: false\nrequired: {command: {a: , b: }}", {"a": WrongState("it sleeps")})


def test_skipped_is_told_and_not_run() -> None:
    probe = TableProbe({"b": ran(0)})
    report = run_on(
        probe, "folders: false\nrequired: {command: {a: {skip: true, title: Later}, b: }}"
    )
    assert [result.outcome for result in report.results] == ["skipped", "pass"]
    assert probe.asked == ["b"]
    assert report.results[0].title == "Later"
    assert report.verdict == "pass"
    nothing = run("folders: false\nrequired: {command: {a: {skip: true}}}")
    assert nothing.verdict == "inconclusive"


def test_results_come_as_they_end_and_are_kept_in_order() -> None:
    seen: list[str] = []
    report = run(
        "folders: false\nrequired: {turn: {t: {exec: t}}, command: {a: , b: , c: , d: , e: , f: }}",
        {"t": ran(0), **{name: ran(0) for name in "abcdef"}},
        progress=lambda result: seen.append(result.name),
        parallel=2,
    )
    assert [result.name for result in report.results] == list("tabcdef")
    assert seen[-1] == "t"
    assert sorted(seen) == sorted("tabcdef")


def test_so_many_at_once() -> None:
    probe = TableProbe({name: ran(0) for name in "abcdef"})
    run_on(probe, "folders: false\nrequired: {command: {a: , b: , c: , d: , e: , f: }}", parallel=2)
    assert probe.most_running == 2


def test_the_run_as_a_whole_has_a_limit() -> None:
    class Slow(TableProbe):
        async def run(self, command: Any, **kwargs: Any) -> Any:
            if command == "slow":
                await asyncio.Event().wait()
            return await super().run(command, **kwargs)

    text = "folders: false\nrequired: {command: {a: , slow: }}"
    report = run_on(Slow({"a": ran(0)}), text, within_seconds=0.2)
    assert [result.outcome for result in report.results] == ["pass", "inconclusive"]
    assert report.results[1].reason == "the run was over after 0.2 s"


@pytest.mark.parametrize(
    ("answer", "group", "outcome", "status"),
    [
        (ran(0, "OK | load=0.5;1;2"), "required", "pass", "pass"),
        (ran(1, "WARNING disk"), "required", "pass", "warn"),
        (ran(1, "WARNING disk"), "wanted", "fail", "warn"),
        (ran(1, "it broke"), "required", "fail", "fail"),
        (ran(2, "CRITICAL"), "required", "fail", "fail"),
        (ran(3, "who knows"), "required", "inconclusive", "inconclusive"),
        (ran(127, "", "not found"), "required", "fail", "fail"),
        (ran(137), "wanted", "fail", "warn"),
    ],
)
def test_plugins(answer: Answer, group: str, outcome: str, status: str) -> None:
    result = one("command: {check_x: {nagios: true}}", {"check_x": answer}, group=group)
    assert (result.outcome, result.status) == (outcome, status)


def test_what_a_plugin_measured() -> None:
    said = "DISK OK | /=2643MB;5948;5958;0;5968 'in '' use'=68%;;95 bad=x load1=-0.5\nmore | b=2s\n"
    result = one("command: {p: {nagios: true}}", {"p": ran(0, said)})
    assert [(m.label, m.value, m.unit) for m in result.measurements] == [
        ("/", 2643, "MB"), ("in ' use", 68, "%"), ("load1", -0.5, ""), ("b", 2, "s"),
    ]  # fmt: skip
    assert (result.measurements[0].warning, result.measurements[0].critical) == ("5948", "5958")
    assert result.reason == "OK, exit code 0: DISK OK"


def test_executables_in_the_folders() -> None:
    root = "/etc/torpor/checks"
    listing = "".join(
        f"{root}/{name}\0{uid}\0{mode}\0"
        for name, uid, mode in [
            ("wanted.d/disk", "0", "755"), ("required.d/20-b", "0", "700"),
            ("required.d/10-a", "0", "755"), ("required.d/open", "0", "777"),
            ("required.d/mine", "1000", "755"),
        ]
    )  # fmt: skip
    report = run(
        "wanted: {command: {c: }}",
        {
            "find -L": ran(0, listing), "c": ran(0), f"{root}/required.d/10-a": ran(0, "fine"),
            f"{root}/required.d/20-b": ran(2, "dead"), f"{root}/wanted.d/disk": ran(1, "WARN: 91 %"),
        },
    )  # fmt: skip
    said = {result.key: result.outcome for result in report.results}
    assert said == {
        "required/executable:10-a": "pass",
        "required/executable:20-b": "fail",
        "required/executable:mine": "inconclusive",
        "required/executable:open": "inconclusive",
        "wanted/command:c": "pass",
        "wanted/executable:disk": "fail",
    }
    refused = next(result for result in report.results if result.name == "open")
    assert "mode is 777" in refused.reason


def test_a_folder_that_cannot_be_read_is_told() -> None:
    report = run(
        "required: {command: {c: }}",
        {"find -L": GuestUnreachable("cut"), "c": ran(0), "true": ran(0)},
    )
    assert report.verdict == "inconclusive"
    assert "could not be read" in report.results[-1].reason


TURN = "turn: {hello: {exec: agent, stdout: [ready], outage: {exit-status: [75], output: [/rate.limit/]}"


@pytest.mark.parametrize(
    ("answers", "outcome", "said"),
    [
        ({"agent": ran(0, "ready\n")}, "pass", "stdout"),
        ({"agent": ran(0, "what?")}, "fail", "stdout: found what?"),
        ({"agent": ran(75, "")}, "inconclusive", "exit code 75 says so"),
        ({"agent": ran(1, "", "HTTP 429: rate limit")}, "inconclusive", "provider is away"),
        ({"agent": ran(137, "", timed_out=True)}, "fail", "did not end within 120 s"),
    ],
)
def test_turns(answers: dict[str, Any], outcome: str, said: str) -> None:
    result = one(f"{TURN}}}}}", answers)
    assert (result.outcome, said in result.reason) == (outcome, True), result.reason


def test_a_control_probe_tells_an_outage_from_a_broken_agent() -> None:
    check = f"{TURN}, control: {{command: ask-provider}}}}}}"
    broken = {"agent": ran(1), "ask-provider": ran(0)}
    assert one(check, broken).outcome == "fail"
    away = {"agent": ran(1), "ask-provider": ran(7, "", "no route")}
    result = one(check, away)
    assert result.outcome == "inconclusive"
    assert "control probe failed too: exit code 7: no route" in result.reason
    silent = one(check, {"agent": ran(1), "ask-provider": ran(7)})
    assert silent.reason.endswith("control probe failed too: exit code 7")
    probe = TableProbe({"agent": ran(0, "ready"), "ask-provider": ran(7)})
    run_on(probe, f"folders: false\nrequired: {{{check}}}")
    assert probe.asked == ["agent"], "a turn that went well asks nothing else"


def test_a_turn_of_the_profile() -> None:
    spec = TurnSpec(command="hermes -z hi", user="agent", expect="hi$", outage_exit_codes=(9,))
    probe = TableProbe({"hermes -z hi": ran(0, "say hi")})
    text = "folders: false\nrequired: {turn: {hello: }}"
    assert only(run_on(probe, text, turn=spec)).outcome == "pass"
    assert probe.users == ["agent"]
    assert only(run(text, {"hermes": ran(0, "no")}, turn=spec)).outcome == "fail"
    assert only(run(text, {"hermes": ran(9)}, turn=spec)).outcome == "inconclusive"
    owned = TurnSpec(command=("hermes", "turn"), homes=("/root/.h", "/home/*/it's"))
    probe = TableProbe({"stat -c %u": ran(0, "1000\n"), "hermes turn": ran(0)})
    assert only(run_on(probe, text, turn=owned)).outcome == "pass"
    assert probe.users == [None, "1000"]
    assert "for home in /root/.h /home/*'/it'\"'\"'s'; do" in probe.asked[0]
    nobody = only(run(text))
    assert (nobody.outcome, "nor an agent profile" in nobody.reason) == ("inconclusive", True)


def inventory(
    *skills: str, key_id: str = "0" * 16, complete: bool = True, **unknown: str
) -> Inventory:
    """Make an inventory with skills: `name` or `name=digest`."""
    entries = {}
    for text in skills:
        name, _, version = text.partition("=")
        hidden = {} if name in unknown else {"content": (version or "0").rjust(32, "0")}
        entries[name] = Entry(
            name=name, hidden=hidden, unknown=tuple(unknown.get(name, "").split())
        )
    return Inventory(
        taken_at=datetime(2026, 1, 2, tzinfo=UTC),
        profile="machine",
        profile_digest="d",
        key_id=key_id,
        duration_ms=1,
        sections={"skills": Section(entries=entries, is_complete=complete, notes=("too many",))},
    )


def baseline(before: Inventory, *now: Inventory) -> Baseline:
    left = list(now)

    async def take() -> Inventory:
        return left.pop(0)

    return Baseline(before=before, take=take)


@pytest.mark.parametrize(
    ("rule", "now", "outcome"),
    [
        ("equal", inventory("a", "b"), "pass"),
        ("equal", inventory("a", "b", "c"), "fail"),
        ("superset", inventory("a", "b", "c"), "pass"),
        ("superset", inventory("a"), "fail"),
        ("superset", inventory("a", "b=1"), "fail"),
        ("may-change", inventory("b=1"), "pass"),
        ("equal", inventory("a", "b", key_id="1" * 16), "inconclusive"),
        ("equal", inventory("a", key_id="1" * 16), "fail"),
        ("equal", inventory("a", "b", complete=False), "inconclusive"),
        ("equal", inventory("a", "b", b="content"), "inconclusive"),
        ("may-change", inventory("a", "b", complete=False), "pass"),
    ],
)
def test_inventory_rules(rule: str, now: Inventory, outcome: str) -> None:
    before = inventory("a", "b")
    for check in (f"inventory: {{skills: {rule}}}", f"inventory: {{skills: {{rule: {rule}}}}}"):
        result = one(check, inventory=baseline(before, now))
        assert result.outcome == outcome, result


def test_what_an_inventory_check_says() -> None:
    found = one(
        "inventory: {skills: equal}", inventory=baseline(inventory("a", "b"), inventory("b=1", "c"))
    )
    assert found.reason == "1 added, 1 gone, 1 changed; the rule is equal: -a, +c, ~b (content)"
    assert found.output


def test_checks_share_an_inventory_and_a_second_attempt_takes_another() -> None:
    before, bad = inventory("a", "b"), inventory("a")
    text = "folders: false\nrequired: {inventory: {skills: {rule: equal, failureThreshold: 2}, skills.content: equal}}"
    report = run(text, inventory=baseline(before, bad, before))
    assert [(r.outcome, r.attempts) for r in report.results] == [("pass", 2), ("pass", 1)]


def test_an_inventory_holds_nothing_that_other_checks_do_meanwhile() -> None:
    doings: list[str] = []

    async def take() -> Inventory:
        doings.append("inventory")
        return inventory("a")

    def doing(name: str) -> Answer:
        return lambda: doings.append(name) or ran(0)

    run(
        "folders: false\nrequired: {inventory: {skills: equal}, turn: {t: {exec: t}},"
        " command: {a: {successThreshold: 3}, b: }}",
        {name: doing(name) for name in "abt"},
        inventory=Baseline(before=inventory("a"), take=take),
    )
    assert sorted(doings[:4]) == list("aaab")
    assert doings[4:] == ["inventory", "t"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (HostNotReady("too old"), "the machine's inventory could not be taken: too old"),
        (GuestFailed("nonsense"), "the machine's inventory could not be taken: nonsense"),
        (GuestUnreachable("cut"), "the machine did not answer: cut"),
    ],
)
def test_an_inventory_that_cannot_be_taken_is_inconclusive(error: Exception, reason: str) -> None:
    async def take() -> Inventory:
        raise error

    found = run(
        "folders: false\nrequired: {inventory: {skills: equal}}",
        {"true": ran(0)},
        inventory=Baseline(before=inventory("a"), take=take),
    )
    assert (found.results[0].outcome, found.results[0].reason) == ("inconclusive", reason)


def test_inventory_without_a_baseline_cannot_be_told() -> None:
    assert one("inventory: {skills: equal}").outcome == "inconclusive"
    other = one("inventory: {jobs: equal}", inventory=baseline(inventory("a"), inventory("a")))
    assert other.outcome == "inconclusive"
    assert other.reason == "the inventory from before did not look at jobs"


def test_evidence_is_bounded_and_clean() -> None:
    noise = "\x1b[31mred\x07\n" + "x" * 10_000 + "\napi_key=abcdef123456 Bearer abcdefghijklmnop\n"
    result = one("command: {x: {stdout: [nothing-like-it]}}", {"x": ran(1, noise)})
    assert len(result.output) <= 4000
    assert len(result.reason) < 1500
    text = json.dumps(result.to_json())
    assert "\\u001b" not in text
    assert "abcdef123456" not in text
    assert "abcdefghijklmnop" not in text
    assert "[masked]" in text
