"""Leases without I/O: what arguments are usable, and what a holder may believe by its own clock (C-46 to C-48).

The holder's deadline counts from *before* each request, because the server starts the TTL at some moment after it. Only
a confirmed renewal moves it. Not guaranteed: that a clock which stands still, as in a suspended machine, notices the
time; a resource that refuses older tokens (`FenceGate`) is safe then too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from streamhold._core.keys import check_lease_key, check_text
from streamhold.errors import ConfigError, FenceRejected

__all__ = ["FenceGate", "LeaseRules", "Term", "check_owner", "check_request", "check_ttl_ms", "check_wait"]

_LONGEST_MS = 100 * 365 * 24 * 3600 * 1000
"""A hundred years: beyond it, expiry times leave the range that the server and Lua can count in."""
_EARLY = 0.1
"""The share of the renew interval that chance takes away, so that many leases do not renew in one moment."""


def check_ttl_ms(ttl_ms: int, option: str = "ttl_ms") -> int:
    """Return a usable TTL unchanged.

    Raises:
        ConfigError: it is no whole number of milliseconds between 1 and a hundred years.
    """
    if not _is_number(ttl_ms, int):
        raise ConfigError(option, ttl_ms, "must be a whole number of milliseconds")
    if not 0 < ttl_ms <= _LONGEST_MS:
        raise ConfigError(option, ttl_ms, f"must be between 1 and {_LONGEST_MS} milliseconds")
    return ttl_ms


def check_owner(owner: str, option: str = "owner") -> str:
    """Return a usable owner unchanged.

    Raises:
        ConfigError: it is empty or not text that UTF-8 can carry.
    """
    return check_text(option, owner)


def check_request(key: str, owner: str, ttl_ms: int) -> None:
    """Check the arguments of an acquire or a renewal before anything is sent.

    Raises:
        ConfigError: the key or the owner is empty, or the TTL is not usable.
    """
    check_lease_key(key)
    check_owner(owner)
    check_ttl_ms(ttl_ms)


def check_wait(wait: float | None) -> float:
    """Return how long to wait in seconds; None is not at all.

    Raises:
        ConfigError: it is no number, or negative.
    """
    if wait is None:
        return 0.0
    if not _is_number(wait, int, float) or not wait >= 0:
        raise ConfigError("wait", wait, "must be a number of seconds, 0 or more, or None")
    return float(min(wait, _LONGEST_MS / 1000)) if wait < math.inf else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRules:
    """How leases of one family are held. Times in milliseconds."""

    ttl_ms: int = 15_000
    """The lease ends this long after its last renewal."""
    renew_interval_ms: int = 0
    """How often a held lease renews itself; 0 is a third of the TTL."""
    lock_delay_ms: int = 0
    """After a holder vanished without releasing, nobody gets the lease for this long."""
    fencing: bool = True
    """Whether each holding gets a token larger than all before."""
    max_hold_ms: int = 0
    """A holding ends after this long, however well it renews; 0 is unlimited."""

    def __post_init__(self) -> None:
        check_ttl_ms(self.ttl_ms)
        if self.renew_interval_ms == 0:
            object.__setattr__(self, "renew_interval_ms", max(1, self.ttl_ms // 3))
        check_ttl_ms(self.renew_interval_ms, "renew_interval_ms")
        if self.renew_interval_ms > max(1, self.ttl_ms // 2):
            raise ConfigError(
                "renew_interval_ms", self.renew_interval_ms, f"must be at most half of ttl_ms={self.ttl_ms}"
            )
        for option in ("lock_delay_ms", "max_hold_ms"):
            if getattr(self, option) != 0:
                check_ttl_ms(getattr(self, option), option)

    def adjusted(self, ttl: float | None, renew_interval: float | None) -> LeaseRules:
        """Return the rules with a TTL or renew interval of the caller's own, in seconds.

        Raises:
            ConfigError: one of them is not usable, or the interval is more than half of the TTL.
        """
        if ttl is None and renew_interval is None:
            return self
        ttl_ms = self.ttl_ms if ttl is None else _milliseconds("ttl", ttl)
        if renew_interval is None:
            renew_interval_ms = max(1, min(self.renew_interval_ms, ttl_ms // 3))
        else:
            renew_interval_ms = _milliseconds("renew_interval", renew_interval)
        return replace(self, ttl_ms=ttl_ms, renew_interval_ms=renew_interval_ms)


def _milliseconds(option: str, seconds: float) -> int:
    # A finite integer may be too large for a float, which `isfinite` would make of it.
    if not _is_number(seconds, int, float) or not -math.inf < seconds < math.inf:
        raise ConfigError(option, seconds, "must be a finite number of seconds")
    if not 0.001 <= seconds <= _LONGEST_MS / 1000:
        raise ConfigError(option, seconds, f"must be between 0.001 and {_LONGEST_MS // 1000} seconds")
    return round(seconds * 1000)


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


class Term:
    """What one holder may believe, in seconds of its own monotonic clock."""

    __slots__ = ("_asked_at", "_ends_at", "_interval", "_ttl")

    def __init__(self, rules: LeaseRules, asked_at: float) -> None:
        """Begin a term with an acquire that was asked for at this moment and granted."""
        self._ttl = _safely(rules.ttl_ms / 1000)
        self._interval = rules.renew_interval_ms / 1000
        self._asked_at = asked_at
        self._ends_at = asked_at + rules.max_hold_ms / 1000 if rules.max_hold_ms else math.inf

    @property
    def deadline(self) -> float:
        """The lease must not be relied on from here on."""
        return min(self._asked_at + self._ttl, self._ends_at)

    @property
    def ends_at(self) -> float:
        """Where the longest holding allowed ends; infinity when it is unlimited."""
        return self._ends_at

    def renewed(self, asked_at: float) -> None:
        """Note that a renewal asked for at this moment was granted."""
        self._asked_at = max(self._asked_at, asked_at)

    def next_renewal(self, draw: float) -> float:
        """When to renew after the last success; `draw` is a random number from 0 to 1."""
        return self._asked_at + self._interval * (1 - _EARLY * draw)

    def patience(self, now: float) -> float:
        """How long to wait for the answer to one renewal: another try must fit in before the deadline."""
        return max(self._asked_at + self._ttl - now, 0.0) / 2


def _safely(ttl: float) -> float:
    """A little less than the TTL: clocks tick at slightly different rates, and stopping a block takes a moment."""
    return ttl - min(0.005 + ttl * 0.002, ttl / 4)


class FenceGate:
    """Lets a resource refuse what an older holder still sends (C-47). One number of memory.

    Keep one per resource, where the writes arrive; a database does the same with a column and
    `WHERE fence <= :token`.
    """

    def __init__(self, key: str, seen: int = 0) -> None:
        """Guard the resource that the lease `key` is for; `seen` is the largest token known so far."""
        self.key = key
        self.seen = seen

    def admit(self, token: int) -> None:
        """Let a write with this token pass, and from now on no older one.

        Raises:
            FenceRejected: a newer token has been seen.
        """
        if token < self.seen:
            raise FenceRejected(self.key, token, self.seen)
        self.seen = token
