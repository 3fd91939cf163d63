"""`turn`: one bounded turn of the agent. A provider that is not there makes it inconclusive, never a failure.

That the provider is away is told by the agent's exit code or words (`outage`), or by a `control` probe that
asks the provider without the agent right after a turn has failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from torpor.recovery.checks.clean import clean, clean_output
from torpor.recovery.checks.commands import command_facts
from torpor.recovery.checks.compare import compare, conclude
from torpor.recovery.checks.facts import Broken, Facts, Unclear
from torpor.recovery.checks.inside import run_script
from torpor.recovery.checks.matchers import Matcher, Output, pattern_matcher
from torpor.recovery.checks.plan import Check, TurnSpec
from torpor.recovery.checks.probe import ProbeMachine, Ran
from torpor.recovery.checks.regexes import search
from torpor.recovery.profiles.homes import globbed
from torpor.recovery.profiles.model import AgentProfile

CONTROL_SECONDS = 30.0


async def look_turn(check: Check, probe: ProbeMachine, spec: TurnSpec | None) -> Facts:
    """Return whether one turn went as it should.

    Raises:
        Unclear: nobody says what a turn is, or the provider is away.
    """
    command = check.options.get("target") or (spec.command if spec else None)
    if command is None:
        raise Unclear("neither the check (`exec`) nor an agent profile says how to take a turn")
    within_s = check.timing.timeout_seconds
    if spec is not None and not check.options["has_timeout"]:
        within_s = spec.timeout_seconds
    user = check.options.get("user") or (await _user_of(spec, probe) if spec else None)
    ran = await probe.run(command, user=user, timeout_seconds=within_s)
    facts = command_facts(ran)
    wants = _wants(check, spec)
    findings = await compare(wants, facts, search)
    outcome, reason = conclude(check, facts, findings)
    if ran.timed_out:
        outcome, reason = "fail", f"the turn did not end within {within_s:g} s and was killed"
    if outcome == "fail":
        await _tell_outage(check, spec, ran, probe)
        if ran.timed_out:
            raise Broken(reason, facts.output)
    return Facts(
        values=facts.values, output=facts.output, decided=outcome, reason=reason, findings=findings
    )


def turn_of(profile: AgentProfile) -> TurnSpec | None:
    """Return the turn that an agent's profile names; None: it names none."""
    turn = profile.turn
    if turn is None:
        return None
    return TurnSpec(
        command=turn.command.command,
        user=turn.command.user or profile.user,
        homes=profile.homes,
        timeout_seconds=turn.command.timeout_seconds,
        expect=turn.expect,
        control=turn.control.command if turn.control else None,
    )


async def _user_of(spec: TurnSpec, probe: ProbeMachine) -> str | None:
    """Return who takes the turn: as root an agent would leave files that it cannot write itself."""
    if spec.user is not None or not spec.homes:
        return spec.user
    patterns = " ".join(globbed(pattern) for pattern in spec.homes)
    look = f'for home in {patterns}; do [ -d "$home" ] && stat -c %u -- "$home" && break; done'
    ran = await probe.run(look, timeout_seconds=CONTROL_SECONDS)
    uid = ran.stdout.decode("ascii", "replace").strip()
    return uid if uid.isdecimal() and len(uid) <= 10 else None


def _wants(check: Check, spec: TurnSpec | None) -> dict[str, Matcher]:
    wants = dict(check.wants)
    wants.setdefault("exit-status", Matcher("equal", 0))
    if spec is not None and spec.expect and "stdout" not in wants:
        wants["stdout"] = Matcher("match-regexp", spec.expect)
    return wants


async def _tell_outage(check: Check, spec: TurnSpec | None, ran: Ran, probe: ProbeMachine) -> None:
    """Raise `Unclear` if the provider is away."""
    codes: Iterable[int] = check.options.get("outage-exit-codes") or (
        spec.outage_exit_codes if spec else ()
    )
    if not ran.timed_out and ran.exit_code in codes:
        raise Unclear(f"the provider is away: exit code {ran.exit_code} says so")
    patterns: Iterable[Matcher] = check.options.get("outage-patterns") or map(
        pattern_matcher, spec.outage_patterns if spec else ()
    )
    said = Output((ran.stdout + b"\n" + ran.stderr).decode("utf-8", "replace"))
    for pattern in patterns:
        if await pattern.match(said, search):
            raise Unclear(f"the provider is away: its output has {clean(pattern.words)}")
    away = await _control(check, spec, probe)
    if away is not None:
        raise Unclear(f"the turn failed, and the control probe failed too: {away}")


async def _control(check: Check, spec: TurnSpec | None, probe: ProbeMachine) -> str | None:
    """Return why the control probe failed; None: it passed, or there is none."""
    url = check.options.get("control-http")
    if url is not None:
        asked = {"url": url, "timeout": CONTROL_SECONDS}
        try:
            answer = await run_script(probe, "http_probe", asked, timeout_seconds=CONTROL_SECONDS)
        except TimeoutError:
            return f"{clean(url)} did not answer within {CONTROL_SECONDS:g} s"
        if "error" in answer:
            return clean(str(answer["error"]))
        status = answer.get("status")
        return (
            f"status {status}"
            if not isinstance(status, int) or status >= 500 or status == 429
            else None
        )
    command = check.options.get("control-command") or (spec.control if spec else None)
    if command is None:
        return None
    ran = await probe.run(command, timeout_seconds=CONTROL_SECONDS)
    if ran.timed_out:
        return f"it did not end within {CONTROL_SECONDS:g} s"
    if not ran.exit_code:
        return None
    said = clean(clean_output(ran.stdout, ran.stderr, most=200))
    return f"exit code {ran.exit_code}{said and f': {said}'}"
