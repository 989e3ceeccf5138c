"""Leases without I/O: arguments, rules, the holder's clock, the gate for tokens (C-46 to C-48)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhold._core.lease import FenceGate, LeaseRules, Term, check_owner, check_ttl_ms, check_wait
from streamhold.errors import ConfigError, FenceRejected

TTL = st.integers(min_value=1, max_value=10**9)
MOMENT = st.floats(min_value=0, max_value=1e7)
DRAW = st.floats(min_value=0, max_value=1)


@pytest.mark.parametrize("ttl_ms", [0, -1, 0.5, 1.0, "1", b"1", None, True, math.inf, math.nan, 10**14])
def test_case_L16_a_ttl_that_redis_could_not_take_is_refused(ttl_ms: Any) -> None:
    with pytest.raises(ValueError, match="ttl_ms"):
        check_ttl_ms(ttl_ms)


def test_usable_arguments_are_returned() -> None:
    assert check_ttl_ms(1) == 1
    assert check_owner("run-1") == "run-1"
    assert [check_wait(wait) for wait in (None, 0, 1, 2.5, math.inf)] == [0.0, 0, 1, 2.5, math.inf]


def test_an_owner_with_a_colon_is_named_whole_when_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"to_owner='pod: a\\x00': must not hold NUL"):
        check_owner("pod: a\0", "to_owner")


def test_the_rules_renew_at_a_third_of_the_ttl_unless_told_otherwise() -> None:
    assert LeaseRules().renew_interval_ms == 5000
    assert LeaseRules(ttl_ms=1).renew_interval_ms == 1
    assert LeaseRules(ttl_ms=3000, renew_interval_ms=1500).renew_interval_ms == 1500


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ttl_ms": 0}, "ttl_ms"),
        ({"ttl_ms": 1000, "renew_interval_ms": 501}, "renew_interval_ms"),
        ({"renew_interval_ms": -1}, "renew_interval_ms"),
        ({"lock_delay_ms": -1}, "lock_delay_ms"),
        ({"max_hold_ms": 0.5}, "max_hold_ms"),
    ],
)
def test_rules_that_cannot_work_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        LeaseRules(**options)


def test_a_callers_own_ttl_takes_the_renew_interval_with_it() -> None:
    policy = LeaseRules(ttl_ms=15000, renew_interval_ms=5000, lock_delay_ms=7, fencing=False, max_hold_ms=9)
    assert policy.adjusted(None, None) is policy
    shorter = policy.adjusted(3, None)
    assert (shorter.ttl_ms, shorter.renew_interval_ms) == (3000, 1000)
    longer = policy.adjusted(60, None)
    assert (longer.ttl_ms, longer.renew_interval_ms) == (60000, 5000)
    own = policy.adjusted(None, 0.25)
    assert (own.ttl_ms, own.renew_interval_ms) == (15000, 250)
    assert (own.lock_delay_ms, own.fencing, own.max_hold_ms) == (7, False, 9)
    with pytest.raises(ConfigError, match="renew_interval_ms=4000"):
        policy.adjusted(5, 4)


@given(TTL, MOMENT)
def test_the_deadline_is_before_the_end_of_a_ttl_that_began_at_the_request(ttl_ms: int, asked_at: float) -> None:
    term = Term(LeaseRules(ttl_ms=ttl_ms), asked_at)
    assert term.deadline < asked_at + ttl_ms / 1000 or ttl_ms / 1000 < 1e-6
    assert term.deadline >= asked_at + ttl_ms / 1000 * 0.7


@given(TTL, MOMENT, DRAW)
def test_a_renewal_is_due_early_enough_for_a_second_try(ttl_ms: int, asked_at: float, draw: float) -> None:
    term = Term(LeaseRules(ttl_ms=max(ttl_ms, 100)), asked_at)
    due = term.next_renewal(draw)
    assert asked_at < due < term.deadline
    assert due + 1.9 * term.patience(due) <= term.deadline + 1e-6
    assert term.patience(term.deadline + 1) == 0


@given(TTL, MOMENT, st.floats(min_value=-1e6, max_value=1e6))
def test_a_renewal_moves_the_deadline_forward_only(ttl_ms: int, asked_at: float, later: float) -> None:
    term = Term(LeaseRules(ttl_ms=ttl_ms), asked_at)
    before = term.deadline
    term.renewed(asked_at + later)
    assert term.deadline >= before
    assert term.deadline == Term(LeaseRules(ttl_ms=ttl_ms), max(asked_at, asked_at + later)).deadline


def test_no_renewal_moves_the_deadline_past_the_longest_holding() -> None:
    term = Term(LeaseRules(ttl_ms=1000, max_hold_ms=1500), 10.0)
    assert term.deadline < 11.0
    term.renewed(10.9)
    assert term.deadline == term.ends_at == 11.5


@given(st.lists(st.integers(min_value=0, max_value=50)))
def test_the_gate_admits_a_token_unless_a_newer_one_was_seen(tokens: list[int]) -> None:
    gate = FenceGate("k", seen=10)
    newest = 10
    for token in tokens:
        if token < newest:
            with pytest.raises(FenceRejected) as refused:
                gate.admit(token)
            assert (refused.value.key, refused.value.token, refused.value.seen) == ("k", token, newest)
        else:
            gate.admit(token)
            newest = token
    assert gate.seen == newest


def test_numbers_too_large_for_a_float_are_refused_or_for_ever() -> None:
    for option in ("ttl", "renew_interval"):
        with pytest.raises(ConfigError, match=option):
            LeaseRules().adjusted(**{"ttl": None, "renew_interval": None, option: 10**400})
    assert check_wait(10**400) > 1e9
