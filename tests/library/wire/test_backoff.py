"""Backoff: delays that grow, have a limit, and never vanish."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhold._core.backoff import Backoff

draws = st.floats(min_value=0, max_value=1, exclude_max=True)


def test_delays_double_up_to_the_limit() -> None:
    backoff = Backoff(first=0.1, factor=2, limit=0.5, jitter=0)
    assert [backoff.delay(n, 0.9) for n in range(1, 6)] == [0.1, 0.2, 0.4, 0.5, 0.5]


@given(failures=st.integers(min_value=1, max_value=10**9), draw=draws)
def test_a_delay_is_within_the_limit_and_above_half_the_first(failures: int, draw: float) -> None:
    backoff = Backoff(first=0.05, limit=2.0, jitter=0.5)
    assert 0.025 < backoff.delay(failures, draw) <= 2.0


@given(seed=st.integers())
def test_the_same_seed_gives_the_same_delays(seed: int) -> None:
    one, other = (list(itertools.islice(Backoff().delays(Random(seed)), 8)) for _ in range(2))
    assert one == other


def test_different_seeds_spread_callers_that_failed_together() -> None:
    assert len({next(Backoff().delays(Random(seed))) for seed in range(50)}) == 50


@pytest.mark.parametrize(
    "bad", [{"first": 0}, {"first": -1}, {"first": 3, "limit": 2}, {"factor": 0.5}, {"jitter": 1}, {"jitter": -0.1}]
)
def test_settings_that_cannot_work_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Backoff(**bad)


@pytest.mark.parametrize("failures", [400, 10**6])
def test_growth_beyond_every_number_ends_at_the_limit(failures: int) -> None:
    assert Backoff(first=1, factor=10, limit=5, jitter=0).delay(failures, 0.5) == 5


def test_no_delay_before_the_first_failure() -> None:
    with pytest.raises(ValueError, match="failures"):
        Backoff().delay(0, 0.5)
