"""Of any two inventories: equal ones do not differ, and backwards is the mirror of forwards."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recovery.inventories import KEY, inventory
from torpor.model_inventory import Entry, Inventory, Section, inventory_from_json
from torpor.model_inventory_diff import EntryChange, FieldChange, compare
from torpor.model_inventory_rules import violations

_NAMES = st.sampled_from(["a", "b", "c", "d/e", "f g"])
_FIELDS = st.sampled_from(["x", "y", "z", "rows"])
_VALUES = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["u", "v"])
_DIGESTS = st.sampled_from(["0" * 32, "1" * 32])


@st.composite
def _sections(draw: st.DrawFn) -> Section:
    entries = {}
    for name in sorted(draw(st.sets(_NAMES))):
        shown = draw(st.dictionaries(_FIELDS, _VALUES, max_size=3))
        hidden = draw(st.dictionaries(_FIELDS, _DIGESTS, max_size=2))
        unknown = draw(st.sets(_FIELDS, max_size=1))
        entries[name] = Entry(
            name=name,
            shown={k: v for k, v in sorted(shown.items()) if k not in hidden},
            hidden=dict(sorted(hidden.items())),
            unknown=tuple(sorted(unknown)),
        )
    return Section(entries=entries, is_complete=draw(st.booleans()))


_INVENTORIES = st.builds(
    inventory,
    st.dictionaries(st.sampled_from(["skills", "jobs", "debian", "tables"]), _sections()),
    key_id=st.sampled_from([KEY, "f" * 16]),
    profile=st.sampled_from(["hermes", "machine"]),
)


@given(_INVENTORIES)
def test_equal_ones_do_not_differ(one: Inventory) -> None:
    diff = compare(one, one)
    assert diff.is_empty
    assert diff.sentences() == ()
    assert violations(diff, {"skills": "equal", "jobs": "equal"}) == ()


@given(_INVENTORIES, _INVENTORIES)
def test_backwards_is_the_mirror(before: Inventory, after: Inventory) -> None:
    forth, back = compare(before, after), compare(after, before)
    assert {_mirror(change) for change in forth.changes} == set(back.changes)
    assert len(forth.not_compared) == len(back.not_compared)
    assert forth == compare(before, after)
    assert bool(forth.changes) == bool(forth.sentences())


@given(_INVENTORIES)
def test_json_keeps_it_all(one: Inventory) -> None:
    assert inventory_from_json(json.loads(json.dumps(one.to_json()))) == one


def _mirror(change: EntryChange) -> EntryChange:
    what = {"added": "removed", "removed": "added", "changed": "changed"}[change.what]
    return EntryChange(
        kind=change.kind,
        name=change.name,
        what=what,  # type: ignore[arg-type]
        fields=tuple(
            FieldChange(
                field=f.field,
                before=f.after,
                after=f.before,
                is_hidden=f.is_hidden,
                appeared=None if f.appeared is None else not f.appeared,
            )
            for f in change.fields
        ),
    )
