"""Tells whether a change did harm, from the checks before it and after it."""

from __future__ import annotations

from torpor.model_checks import CheckReport, CheckResult, Judgement, Verdict


def judge(before: CheckReport | None, after: CheckReport) -> Judgement:
    """Return what the checks say of a change.

    - `fail`: a required check fails after it that did not fail before it, or one that passed before is gone.
    - `inconclusive`: none fails so, but one could not be told; or none passes, so that nothing was shown.
    - `pass`: else. A required check that failed before too is not the change's fault.

    Args:
        before: the same checks, run before the change; None: there was no such run, so nothing is excused.
        after: the checks, run after the change.
    """
    earlier = {result.key: result for result in before.results} if before is not None else {}
    required = [r for r in after.results if r.group == "required" and r.outcome != "skipped"]
    failing = [result for result in required if result.outcome == "fail"]
    excused = [result for result in failing if _failed(earlier.get(result.key))]
    blamed = [result for result in failing if result not in excused]
    unclear = [result for result in required if result.outcome == "inconclusive"]
    gone = _gone(earlier, after)
    reasons = [
        *(f"{r.key} fails: {r.reason}{_since(earlier.get(r.key), before)}" for r in blamed),
        *(f"{r.key} is gone: it passed before the change and is not there any more" for r in gone),
        *(f"{r.key} could not be told: {r.reason}" for r in unclear),
        *(f"{r.key} fails, and failed before the change too: {r.reason}" for r in excused),
    ]
    verdict: Verdict = "pass"
    if blamed or gone:
        verdict = "fail"
    elif unclear:
        verdict = "inconclusive"
    elif not any(result.outcome == "pass" for result in required):
        verdict = "inconclusive"
        reasons.insert(0, "no required check passes, so nothing shows that the change did no harm")
    return Judgement(
        verdict=verdict,
        reasons=tuple(reasons),
        failed_before_too=tuple(result.key for result in excused),
        warnings=tuple(
            f"{r.key} fails: {r.reason}"
            for r in after.results
            if r.group == "wanted" and r.outcome == "fail" and not _failed(earlier.get(r.key))
        ),
    )


def _failed(result: CheckResult | None) -> bool:
    return result is not None and result.outcome == "fail"


def _gone(earlier: dict[str, CheckResult], after: CheckReport) -> list[CheckResult]:
    there = {result.key for result in after.results}
    return [
        result
        for key, result in earlier.items()
        if result.group == "required" and result.outcome == "pass" and key not in there
        and result.kind != "machine"
    ]  # fmt: skip


def _since(result: CheckResult | None, before: CheckReport | None) -> str:
    if before is None:
        return ""
    if result is None:
        return " (it was not looked at before the change)"
    if result.outcome == "inconclusive":
        return " (before the change it could not be told)"
    return " (it passed before the change)" if result.outcome == "pass" else ""
