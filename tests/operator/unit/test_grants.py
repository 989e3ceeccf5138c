"""How several problems of a client become one condition."""

from __future__ import annotations

from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.outcome import Refusal
from streamhold_operator.reconcile.grants import together


def test_problems_of_different_kinds_are_all_told() -> None:
    told = together(
        [Refusal(Reason.TOPIC_NOT_FOUND, "no topic a"), Refusal(Reason.LEASE_POLICY_NOT_FOUND, "no lease policy b")]
    )
    assert told == Refusal(Reason.TOPIC_NOT_FOUND, "no topic a; no lease policy b")


def test_of_many_problems_the_first_are_told_and_the_others_counted() -> None:
    told = together([Refusal(Reason.TOPIC_NOT_FOUND, f"no topic {number}") for number in range(5)])
    assert told is not None
    assert told.message == "no topic 0; no topic 1; no topic 2; and 2 more"


def test_what_is_undecided_gives_the_reason_and_the_time_to_look_again() -> None:
    told = together(
        [
            Refusal(Reason.TOPIC_NOT_FOUND, "no topic a"),
            Refusal(Reason.TOPIC_NOT_READY, "topic b is not ready", retry_after=1.0),
        ]
    )
    assert told == Refusal(Reason.TOPIC_NOT_READY, "topic b is not ready; no topic a", retry_after=1.0)


def test_no_problem_is_no_refusal() -> None:
    assert together([]) is None
