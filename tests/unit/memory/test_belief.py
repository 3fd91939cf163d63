from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torpor.memory import belief
from torpor.memory.belief import Claim, displacer_of, effective_end, holders, moments


def claim(name: str, value: str, since: int, **more: object) -> Claim:
    fields: dict[str, object] = {
        "id": name, "value": value, "rank": 3, "is_human": False, "tx": 1,
        "valid_from": since, "valid_to": None, "ended_at": None,
    }  # fmt: skip
    return Claim(**{**fields, **more})  # type: ignore[arg-type]


def ids(claims: list[Claim], at: int) -> list[str]:
    return [c.id for c in holders(claims, at)]


def test_a_newer_value_takes_the_place_of_an_older_one() -> None:
    claims = [claim("a", "x", 1), claim("b", "y", 5)]
    assert [ids(claims, at) for at in (0, 1, 4, 5, 9)] == [[], ["a"], ["a"], ["b"], ["b"]]
    assert effective_end(claims, "a") == 5
    assert effective_end(claims, "b") is None


def test_a_lower_rank_does_not_displace_and_both_are_given() -> None:
    claims = [claim("a", "x", 1), claim("b", "y", 5, rank=1)]
    assert ids(claims, 6) == ["b", "a"]
    assert displacer_of(claims, "a", 6) is None


def test_two_values_of_one_moment_are_both_given() -> None:
    assert ids([claim("a", "x", 1), claim("b", "y", 1)], 2) == ["b", "a"]


def test_a_bounded_claim_gives_the_place_back() -> None:
    claims = [claim("a", "x", 1), claim("b", "y", 3, valid_to=5)]
    assert [ids(claims, at) for at in (2, 3, 4, 5)] == [["a"], ["b"], ["b"], ["a"]]


def test_an_ended_claim_does_not_give_the_place_back() -> None:
    claims = [claim("a", "x", 1), claim("b", "y", 3, ended_at=5)]
    assert [ids(claims, at) for at in (2, 4, 5, 9)] == [["a"], ["b"], [], []]


def test_the_same_value_is_given_once_by_the_better_claim() -> None:
    claims = [claim("a", "x", 1, rank=1), claim("b", "x", 5)]
    assert ids(claims, 3) == ["a"]
    assert ids(claims, 6) == ["b"]


def test_a_refuted_value_does_not_displace_its_correction_unless_a_human_says_so() -> None:
    right = claim("right", "y", 1, is_human=True, refutes=frozenset({"x"}))
    assert ids([right, claim("again", "x", 5)], 6) == ["again", "right"]
    assert ids([right, claim("other", "z", 5)], 6) == ["other"]
    assert ids([right, claim("again", "x", 5, is_human=True)], 6) == ["again"]


def test_what_was_confirmed_is_not_displaced_by_what_came_before_the_confirmation() -> None:
    claims = [claim("a", "x", 1), claim("a", "x", 8), claim("late", "y", 4)]
    assert [ids(claims, at) for at in (2, 5, 9)] == [["a"], ["late"], ["a"]]
    assert displacer_of(claims, "a", 5) is not None
    assert displacer_of(claims, "a", 9) is None
    assert effective_end(claims, "a") is None


def test_moments_are_all_times_at_which_something_changes() -> None:
    claims = [claim("a", "x", 1, valid_to=4), claim("b", "y", 2, ended_at=9)]
    assert moments(claims) == [1, 2, 4, 9]


def plainly(claims: list[Claim], at: int) -> set[str]:
    """Return the values that hold, by comparing each claim with each other."""
    covering = [c for c in claims if c.covers(at)]
    return {
        c.value
        for c in covering
        if not c.is_ended(at) and not any(belief.displaces(other, c, at) for other in covering)
    }


@given(
    st.lists(
        st.builds(
            Claim,
            id=st.integers(0, 1 << 30).map(str),
            value=st.sampled_from("abc"),
            rank=st.integers(1, 3),
            is_human=st.booleans(),
            tx=st.integers(1, 9),
            valid_from=st.integers(0, 6),
            valid_to=st.none() | st.integers(1, 9),
            ended_at=st.none() | st.integers(1, 9),
            refutes=st.frozensets(st.sampled_from("abc"), max_size=2),
        ),
        max_size=12,
    ),
    st.integers(0, 9),
)
def test_what_holds_is_what_nothing_displaces(claims: list[Claim], at: int) -> None:
    assert {c.value for c in belief.holders(claims, at)} == plainly(claims, at)
