"""Conditions: kstatus form, and when their times move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from streamhold_operator.api.conditions import MESSAGE_LIMIT, STALLED, Reason, build, find, is_ready, timestamp

EARLY = datetime(2026, 1, 1, tzinfo=UTC)
LATE = EARLY + timedelta(hours=1)


@pytest.mark.parametrize("reason", list(Reason))
def test_ready_is_always_there_and_at_most_one_other_only_while_it_is_true(reason: Reason) -> None:
    conditions = build((), reason, "so it is", generation=3, now=EARLY)
    others = {condition.type: condition.status for condition in conditions[1:]}
    expected: dict[str, str] = {}
    if reason in STALLED:
        expected = {"Stalled": "True"}
    elif reason not in (Reason.READY, Reason.SUSPENDED):
        expected = {"Reconciling": "True"}
    assert others == expected
    assert conditions[0].type == "Ready"
    assert is_ready(conditions) is (reason is Reason.READY)
    assert {(one.reason, one.message, one.observed_generation) for one in conditions} == {(reason, "so it is", 3)}


def test_the_transition_time_moves_only_when_the_status_does() -> None:
    first = build((), Reason.UNREACHABLE, "a", generation=1, now=EARLY)
    again = build(first, Reason.AUTH_FAILED, "b", generation=2, now=LATE)
    assert again[0].last_transition_time == timestamp(EARLY)
    assert again[1].type == "Stalled"
    assert again[1].last_transition_time == timestamp(LATE)
    ready = build(again, Reason.READY, "c", generation=2, now=LATE)
    assert [(one.type, one.last_transition_time) for one in ready] == [("Ready", timestamp(LATE))]
    assert build(ready, Reason.READY, "c", generation=2, now=LATE + timedelta(days=1)) == ready


def test_a_message_too_long_is_cut_with_a_mark() -> None:
    condition = build((), Reason.READY, "x" * (MESSAGE_LIMIT + 1), generation=1, now=EARLY)[0]
    assert len(condition.message) == MESSAGE_LIMIT
    assert condition.message.endswith("…")


def test_times_are_written_in_utc_whatever_their_zone() -> None:
    assert timestamp(datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-01T01:00:00Z"


def test_a_condition_is_found_by_its_type() -> None:
    conditions = build((), Reason.CONFLICT, "a", generation=1, now=EARLY)
    assert find(conditions, "Stalled") == conditions[1]
    assert find(conditions, "Reconciling") is None
    assert not is_ready(())
