"""What a drill may ask for: refused here, before anything is looked up or begun."""

from __future__ import annotations

from torpor.base.ids import check_id
from torpor.errors import InvalidRequest
from torpor.model_drills import DrillId, DrillSpec
from torpor.recovery.requests import check_checks, check_profile

_TEXT_MOST = 1000
_SECONDS = (60.0, 86400.0)


def check_drill_id(text: str) -> DrillId:
    """Return the id. Raises `InvalidRequest` when it is none."""
    return DrillId(check_id(text, "drl", "drill"))


def check_schedule_id(text: str) -> str:
    """Return the id. Raises `InvalidRequest` when it is none."""
    return check_id(text, "sch", "schedule")


def check_spec(spec: DrillSpec) -> None:
    """Raise for a drill that cannot be right; a checks file's faults with line and column.

    Raises:
        InvalidRequest: a value, the checks or the profile cannot be right.
        NotFound: no shipped profile has that name.
    """
    if not spec.boots or len(set(spec.boots)) != len(spec.boots):
        raise InvalidRequest(
            f"boots is {list(spec.boots)}; ram, cold or both are wanted, each once",
            hint="leave it out",
        )
    for memory in spec.boots:
        if memory not in ("ram", "cold"):
            raise InvalidRequest(f"boots has {memory!r}; 'ram' or 'cold' is wanted")
    least, most = _SECONDS
    if not least <= spec.limit_seconds <= most:
        raise InvalidRequest(
            f"limit_seconds is {spec.limit_seconds:g}; {least:g} to {most:g} is wanted"
        )
    if len(spec.author) > _TEXT_MOST or not spec.author.isprintable():
        raise InvalidRequest("author cannot be used", hint=f"one line of up to {_TEXT_MOST}")
    check_checks(spec.checks, spec.checks_source)
    check_profile(spec.profile)
