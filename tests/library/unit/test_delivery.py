"""One delivery: who wins, what is written again, what is kept of what was given up (C-3, C-15 to C-17)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhold._core.delivery import (
    GivenUp,
    Settlement,
    State,
    dead_letter,
    entry_order,
    may_retry,
    read_fields,
    retry_fields,
)


def test_the_first_settlement_wins() -> None:
    settlement = Settlement()
    assert settlement.begin()
    assert not settlement.begin()
    settlement.finish()
    assert not settlement.begin()
    assert settlement.state is State.SETTLED


def test_a_settlement_that_failed_can_be_repeated() -> None:
    settlement = Settlement()
    settlement.begin()
    settlement.reopen()
    assert settlement.begin()


def test_what_is_settled_for_good_is_not_reopened() -> None:
    settlement = Settlement()
    settlement.begin()
    settlement.finish()
    settlement.reopen()
    assert not settlement.begin()


@pytest.mark.parametrize(
    ("attempt", "cap", "again"),
    [(1, 5, True), (4, 5, True), (5, 5, False), (6, 5, False), (1, 1, False), (99, 0, True)],
)
def test_an_event_is_retried_below_the_cap(attempt: int, cap: int, again: bool) -> None:
    assert may_retry(attempt, cap) is again


@pytest.mark.parametrize(
    ("fields", "event", "group"),
    [
        ([], None, None),
        ([b"event", b"1"], b"1", None),
        ([b"other", b"1"], None, None),
        ([b"streamhold-group", b"g"], None, b"g"),
        ([b"event", b"1", b"streamhold-group", b"g"], b"1", b"g"),
        ([b"event", b"1", b"event", b"2"], b"2", None),
        ([b"x", b"event", b"event", b"2"], b"2", None),
    ],
)
def test_the_fields_of_an_entry_are_read(fields: list[bytes], event: bytes | None, group: bytes | None) -> None:
    assert read_fields(fields) == (event, group)


def test_a_retry_keeps_unknown_fields_and_names_its_group() -> None:
    fields = [b"trace", b"t", b"event", b"old", b"streamhold-group", b"x", b"trace", b"again"]
    assert retry_fields(fields, b"new", "g") == [
        b"event", b"new", b"streamhold-group", b"g", b"trace", b"t", b"trace", b"again",
    ]  # fmt: skip


def test_a_dead_letter_says_why_and_keeps_the_event_as_it_was() -> None:
    why = GivenUp("ValueError: \ud800", "g", 5, "2026-11-30T12:00:00.123Z")
    letter = dead_letter([b"event", b"{}", b"reason", b"theirs", b"trace", b"t"], why)
    assert letter == [
        b"event", b"{}", b"reason", b"ValueError: \\ud800", b"group", b"g", b"attempts", b"5",
        b"time", b"2026-11-30T12:00:00.123Z", b"trace", b"t",
    ]  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 2**48), st.integers(0, 2**64 - 1)), min_size=1))
def test_entry_ids_are_ordered_as_numbers(ids: list[tuple[int, int]]) -> None:
    texts = [b"%d-%d" % one for one in ids]
    assert sorted(texts, key=entry_order) == [b"%d-%d" % one for one in sorted(ids)]
