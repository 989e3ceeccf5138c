"""Every constraint on a single field: what the API server takes there, and what it refuses with which words."""

from __future__ import annotations

from typing import Any

import pytest

from support.crd_rules import Admission, Object, put
from support.crd_values import BASES, PLACES, an_object

_EVERY_PLACE = [(kind, path) for kind, places in PLACES.items() for path in places]


def objects_with(kind: str, path: str, value: Any) -> list[Object]:
    """Objects with the value at that place, one for each base that has it."""
    found = []
    for spec in BASES[kind]:
        try:
            found.append(put(an_object(kind, spec), path, value))
        except LookupError:
            continue
    assert found, f"no base of {kind} has {path}"
    return found


@pytest.mark.parametrize(("kind", "path"), _EVERY_PLACE, ids=[f"{kind}:{path}" for kind, path in _EVERY_PLACE])
def test_case_O24_a_field_takes_what_is_legal_and_says_what_would_be(
    kind: str, path: str, admission: Admission
) -> None:
    sort = PLACES[kind][path]
    unexpected = []
    for value in sort.accepted:
        answers = [admission.refusals(thing) for thing in objects_with(kind, path, value)]
        if all(answers):
            unexpected.append(f"{value!r} was refused: {answers[0]}")
    field = path.replace("[]", "[0]").removesuffix("{}")
    for value, says in sort.refused:
        answer = admission.refusals(objects_with(kind, path, value)[0])
        if not any(complaint.startswith(field) and says in complaint for complaint in answer):
            unexpected.append(f"{value!r} was not refused with {says!r}, but: {answer}")
    assert unexpected == []


@pytest.mark.parametrize("kind", list(BASES))
def test_the_specs_that_the_examples_build_on_are_taken(kind: str, admission: Admission) -> None:
    assert [answer for spec in BASES[kind] if (answer := admission.refusals(an_object(kind, spec)))] == []
