"""Waiting with a deadline: the value comes back, asserts count as "not yet", errors end the wait."""

from __future__ import annotations

import itertools

import pytest

from streamhold_dev.waiting import NotInTime, eventually, eventually_sync

pytestmark = pytest.mark.anyio


async def test_the_value_of_an_async_condition_comes_back_once_it_is_true() -> None:
    numbers = itertools.count()

    async def third() -> int | None:
        number = next(numbers)
        return number if number == 3 else None

    assert await eventually(third, interval=0.001) == 3


async def test_a_condition_that_stays_false_ends_with_what_was_last_seen() -> None:
    with pytest.raises(NotInTime, match=r"no topics: not within 0\.01 s; last seen: \[\]"):
        await eventually(list, timeout=0.01, message="no topics")


async def test_a_failed_assert_counts_as_not_yet() -> None:
    numbers = itertools.count()

    def big_enough() -> bool:
        assert next(numbers) > 2
        return True

    assert await eventually(big_enough, interval=0.001)


async def test_any_other_error_ends_the_wait_at_once() -> None:
    def broken() -> bool:
        raise KeyError("name")

    with pytest.raises(KeyError, match="name"):
        await eventually(broken)


def test_the_plain_twin_waits_and_fails_alike() -> None:
    numbers = itertools.count()
    assert eventually_sync(lambda: next(numbers) > 2, interval=0.001)

    with pytest.raises(NotInTime, match="last seen: 0"):
        eventually_sync(lambda: 0, timeout=0.01)
