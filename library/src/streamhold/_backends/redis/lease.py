"""Leases in Redis: the five methods of the contract, each one round trip (C-40 to C-47).

The lease itself is what pods of the TypeScript package write too: a string with the owner and a TTL. Tokens live beside
it in a record of our own, which those pods neither read nor write; the scripts hold record and lease against each
other, so a lease that such a pod took, moved or freed is noticed at our next call.

Tokens are the server's clock in microseconds, or one more than the largest given out so far where that is larger; so
they grow across expiry, and across a restart that lost everything. Not guaranteed: growth across a failover to a server
whose clock is behind *and* which had not received the last tokens yet; no more than one believer during a failover.
Pods with a binding keep the largest token of a lease family, pods with a plain URL that of a whole prefix: between the
two, once a lease has ended, only the clock orders tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from streamhold._backends.redis.scripts import Script
from streamhold._backends.store import Store
from streamhold._binding import Binding
from streamhold._core import keys
from streamhold._core.lease import LeaseRules, check_owner, check_request
from streamhold.errors import BackendError, BackendUnavailable, LeaseUnavailable, OutcomeUnknown
from streamhold.types import LeaseGrant

__all__ = ["LeasePlace", "RedisLeases"]

_PLACES_KEPT = 4096
"""Leases whose keys are not made anew at each call."""

_ACQUIRE = Script("lease_acquire")
_RENEW = Script("lease_renew")
_RELEASE = Script("lease_release")
_TRANSFER = Script("lease_transfer")


@dataclass(frozen=True, slots=True)
class LeasePlace:
    """Where one lease lives and by which rules."""

    lease: str
    """The key with the owner."""
    fence: str
    """The key with the token of the current holding."""
    floor: str
    """The key with the largest token given out."""
    rules: LeaseRules

    @classmethod
    def below(cls, prefix: str, key: str, rules: LeaseRules, family: str | None = None) -> LeasePlace:
        """The place of a lease below a key prefix.

        Raises:
            ConfigError: the key is not usable.
        """
        lease = keys.lease_key(prefix, key)
        return cls(lease, keys.companion(prefix, "fence", lease), keys.floor_key(prefix, family), rules)


Places: TypeAlias = Callable[[str], LeasePlace]
"""Finds the place of a lease by the key that code calls it."""


class HeldByAnother(LeaseGrant):
    """A refusal that also knows how long to wait."""

    held_for_ms: int | None = None
    """When the lease ends unless it is renewed; None: it has no TTL."""


class RedisLeases:
    """A lease provider over one client; it keeps nothing in memory."""

    def __init__(self, client: Store, places: Places) -> None:
        """Use `for_prefix` or `for_binding` unless you find places yourself."""
        self._client = client
        self._places = functools.lru_cache(_PLACES_KEPT)(places)

    @classmethod
    def for_prefix(cls, client: Store, prefix: str, rules: LeaseRules | None = None) -> RedisLeases:
        """All leases below one key prefix, by the same rules."""
        shared = rules or LeaseRules()
        return cls(client, lambda key: LeasePlace.below(prefix, key, shared))

    @classmethod
    def for_binding(cls, client: Store, binding: Binding) -> RedisLeases:
        """The leases that a binding grants, each by the rules of its policy."""

        def place(name: str) -> LeasePlace:
            keys.check_lease_key(name)
            bound = binding.lease(name)
            policy = bound.policy
            rules = LeaseRules(
                ttl_ms=policy.ttl_ms,
                renew_interval_ms=policy.renew_interval_ms,
                lock_delay_ms=policy.lock_delay_ms,
                fencing=policy.fencing,
                max_hold_ms=policy.max_hold_ms,
            )
            return LeasePlace.below(policy.prefix, bound.key, rules, family=policy.keys)

        return cls(client, place)

    def lease_rules(self, key: str) -> LeaseRules:
        """The rules that hold for a lease.

        Raises:
            LeaseNotDeclared: the binding grants no such lease.
        """
        return self._places(key).rules

    async def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> LeaseGrant:
        """Take a free lease, or refresh one's own.

        Returns:
            Whether `owner` holds it now, who does, and the token of the holding.

        Raises:
            ConfigError: an argument is not usable; nothing was sent.
            LeaseUnavailable: no answer within the TTL. It may be held by `owner` now; asking again is safe.
            BackendError: the server refused.
        """
        check_request(key, owner, ttl_ms)
        place = self._places(key)
        try:
            # An answer later than the TTL would be about a lease that has ended.
            taken, holder, number = await self._client.run_script(
                _ACQUIRE,
                (place.lease, place.fence, place.floor),
                (owner, ttl_ms, place.rules.lock_delay_ms, int(place.rules.fencing)),
                timeout=min(self._client.timeout, ttl_ms / 1000),
                idempotent=True,
            )
        except BackendError as error:
            _raise_named(error, key, "acquiring")
        if taken:
            return LeaseGrant(True, owner, number or None)
        refusal = HeldByAnother(False, _text(holder))
        refusal.held_for_ms = number if number >= 0 else None
        return refusal

    async def get_lease_owner(self, key: str) -> str | None:
        """Return who holds a lease, None when nobody does.

        Raises:
            ConfigError: the key is not usable.
            LeaseUnavailable: the server could not be asked in time.
            BackendError: the server refused.
        """
        place = self._places(keys.check_lease_key(key))
        try:
            owner = await self._client.execute("GET", place.lease, idempotent=True)
        except BackendError as error:
            _raise_named(error, key, "asking for the owner")
        return None if owner is None else _text(owner)

    async def release_lease(self, key: str, owner: str, *, token: int | None = None) -> None:
        """Free a lease if `owner` holds it; else do nothing.

        Args:
            token: free it only if it is still this very holding.

        Raises:
            ConfigError: an argument is not usable; nothing was sent.
            LeaseUnavailable: the server could not be asked in time; the lease ends with its TTL at the latest.
            BackendError: the server refused.
        """
        keys.check_lease_key(key)
        check_owner(owner)
        place = self._places(key)
        try:
            await self._client.run_script(
                _RELEASE, (place.lease, place.fence), (owner, _expected(token)), idempotent=True
            )
        except BackendError as error:
            _raise_named(error, key, "releasing")

    async def renew_lease(self, key: str, owner: str, ttl_ms: int, *, token: int | None = None) -> bool:
        """Refresh a lease.

        Args:
            token: refresh it only if it is still this very holding: the owner may have lost it and been given it back.

        Returns:
            False when `owner` does not hold it any more.

        Raises:
            ConfigError: an argument is not usable; nothing was sent.
            LeaseUnavailable: the server could not be asked in time: the lease may or may not be held.
            BackendError: the server refused.
        """
        check_request(key, owner, ttl_ms)
        place = self._places(key)
        try:
            renewed, _ = await self._client.run_script(
                _RENEW,
                (place.lease, place.fence, place.floor),
                (owner, ttl_ms, place.rules.lock_delay_ms, int(place.rules.fencing), _expected(token)),
                timeout=min(self._client.timeout, _patience(ttl_ms / 1000)),
                idempotent=True,
            )
        except BackendError as error:
            _raise_named(error, key, "renewing")
        return bool(renewed)

    async def transfer_lease(
        self, key: str, from_owner: str, to_owner: str, ttl_ms: int, *, token: int | None = None
    ) -> bool:
        """Hand a lease over in one step; the new owner learns its token by acquiring.

        Args:
            token: hand it over only if it is still this very holding of `from_owner`.

        Returns:
            False when `from_owner` does not hold it any more.

        Raises:
            ConfigError: an argument is not usable; nothing was sent.
            LeaseUnavailable: the server could not be asked in time: either of the two may hold it.
            BackendError: the server refused.
        """
        check_request(key, from_owner, ttl_ms)
        check_owner(to_owner, "to_owner")
        place = self._places(key)
        rules = place.rules
        try:
            moved, _ = await self._client.run_script(
                _TRANSFER,
                (place.lease, place.fence, place.floor),
                (from_owner, to_owner, ttl_ms, rules.lock_delay_ms, int(rules.fencing), _expected(token)),
            )
        except BackendError as error:
            _raise_named(error, key, "transferring")
        return bool(moved)


def _raise_named(error: BackendError, key: str, doing: str) -> NoReturn:
    """Let an error name the lease: the server's own speak of commands."""
    if isinstance(error, BackendUnavailable | OutcomeUnknown):
        raise LeaseUnavailable(key, f"{doing} it failed: {error}") from error
    error.add_note(f"while {doing} the lease {key!r}")
    raise error


def _patience(ttl: float) -> float:
    """How long one renewal may take: a few must fit into the TTL, so that a dead connection is found and replaced."""
    return max(ttl / 4, min(ttl, 0.25))


def _expected(token: int | None) -> str:
    return "" if token is None else str(token)


def _text(value: Any) -> str:
    # Another program may have written any bytes there; the owner is for people and for comparing with our own.
    return bytes(value).decode(errors="backslashreplace")
