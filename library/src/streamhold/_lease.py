"""Holding a lease: take it, keep it, stop the work when it is lost, give it back (C-45 to C-49).

Written on the five methods of the `LeaseProvider` protocol only. Two more things are used where a provider has them:
`lease_rules(key)` for its policy, and the keyword `token` of release, renewal and transfer where its grants carry one.

What is guaranteed: the block is cancelled before the TTL ends by this process's monotonic clock, also when the server
does not answer; nothing is released before the block has ended; the block's own exception is raised unchanged. Not
guaranteed: that a block which blocks the event loop, or ignores its cancellation, stops in time. `Lease.ensure_held`
asks the clock without the loop, and a resource that checks the token is safe in any case.
"""

from __future__ import annotations

import logging
import math
import random
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio

from streamhold._core.backoff import Backoff
from streamhold._core.keys import check_lease_key
from streamhold._core.lease import FenceGate, LeaseRules, Term, check_owner, check_request, check_wait
from streamhold.errors import (
    ConfigError,
    HubClosed,
    LeaseHeld,
    LeaseLost,
    LeaseUnavailable,
    OutcomeUnknown,
    StreamholdError,
    WrongKeyType,
)
from streamhold.types import LeaseGrant, LeaseProvider

__all__ = ["FenceGate", "Lease", "NoopLeaseProvider", "hold_lease", "lease_provider_of"]

logger = logging.getLogger("streamhold.lease")

_now = time.monotonic
"""The holder's clock. The loop's own may stand still while something blocks the loop."""

_METHODS = ("acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease")
_POLLING = Backoff(first=0.05, limit=1.0)
_RENEWING_AGAIN = Backoff(first=0.05, limit=1.0)
_SHORTEST_TRY = 0.25
"""Seconds that one attempt may take although less is left to wait: a free lease is worth a round trip."""
_SHORTEST_PAUSE = 0.01
_SPREAD = 0.02
"""Seconds over which waiters spread when a lease ends, so that they do not ask in one moment."""
_RELEASE_LIMIT = 2.0


class NoopLeaseProvider:
    """Stands in where a backend has no leases: every acquire wins, so a single process works as before (C-45)."""

    async def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> LeaseGrant:
        """Win."""
        check_request(key, owner, ttl_ms)
        return LeaseGrant(True, owner)

    async def get_lease_owner(self, key: str) -> str | None:
        """Know nobody."""
        check_lease_key(key)
        return None

    async def release_lease(self, key: str, owner: str) -> None:
        """Do nothing."""
        check_lease_key(key)
        check_owner(owner)

    async def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Succeed."""
        check_request(key, owner, ttl_ms)
        return True

    async def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Succeed."""
        check_request(key, from_owner, ttl_ms)
        check_owner(to_owner, "to_owner")
        return True


def lease_provider_of(candidate: object) -> LeaseProvider:
    """Return the candidate if it has the five lease methods, whatever its class; else a provider that always wins."""
    if all(callable(getattr(candidate, name, None)) for name in _METHODS):
        return cast("LeaseProvider", candidate)
    return NoopLeaseProvider()


class Lease:
    """A lease that is held. Made by `hold_lease`."""

    key: str
    """The lease's key, as it was asked for."""
    owner: str
    """Who we are to the other candidates."""
    token: int | None
    """Larger than the token of every earlier holding; None where the provider has no tokens."""

    def __init__(self, provider: Any, key: str, owner: str, token: int | None, rules: LeaseRules, term: Term) -> None:
        """Use `hold_lease`."""
        self.key = key
        self.owner = owner
        self.token = token
        self._provider = provider
        self._rules = rules
        self._term = term
        self._with_token: dict[str, int] = {} if token is None else {"token": token}
        self._guard = anyio.CancelScope(deadline=_on_the_loop(term.deadline))
        self._renewing = anyio.CancelScope()
        # One request at a time: a renewal must not judge a lease that is being handed over.
        self._asking = anyio.Lock(fast_acquire=True)
        self._lost: str | None = None
        self._cause: Exception | None = None
        self._gone = False  # the server said that it is not ours, or it was handed over: there is nothing to release
        self._handed_over = False

    def __repr__(self) -> str:
        return f"<Lease {self.key!r} owner={self.owner!r} token={self.token}>"

    @property
    def held(self) -> bool:
        """Whether it is certainly held now, by this process's clock."""
        return self._lost is None and not self._handed_over and _now() < self._term.deadline

    def ensure_held(self) -> None:
        """Check before a step that must not happen without the lease; asks the clock, not the server.

        Raises:
            LeaseLost: it is not held any more.
        """
        if not self.held:
            raise self._loss()

    async def transfer_to(self, owner: str) -> None:
        """Hand the lease to another owner without a gap. From then on it is not held here, and the block may go on.

        Raises:
            ConfigError: the owner is not usable.
            LeaseLost: it is not held any more.
            LeaseUnavailable: the server could not be asked in time: either of the two may hold it.
        """
        if check_owner(owner) == self.owner:
            raise ConfigError("owner", owner, "holds it already")
        async with self._asking:
            self.ensure_held()
            moved = await self._provider.transfer_lease(
                self.key, self.owner, owner, self._rules.ttl_ms, **self._with_token
            )
            if not moved:
                self._lose("another owner holds it, or nobody", gone=True)
                raise self._loss()
            self._handed_over = self._gone = True
            self._guard.deadline = math.inf

    # ---- for hold_lease ----

    def _lose(self, why: str, *, cause: Exception | None = None, gone: bool = False) -> None:
        if self._lost is None and not self._handed_over:
            self._lost, self._cause, self._gone = why, cause, gone
            logger.warning("lease %r is lost: %s", self.key, why)
            self._guard.cancel()

    def _loss(self) -> LeaseLost:
        why = self._lost or ("it was handed over" if self._handed_over else self._overdue())
        loss = LeaseLost(self.key, f"{why} (owner {self.owner!r}, token {self.token})")
        loss.__cause__ = self._cause
        return loss

    def _overdue(self) -> str:
        if self._term.deadline == self._term.ends_at:
            return f"it may be held for {self._rules.max_hold_ms / 1000:g} s at most, and they are over"
        return "it was not renewed before its TTL ended"

    def _check_the_end(self) -> None:
        """Notice a loss that nothing has told yet: the guard's timer fired, or the loop was blocked beyond it."""
        if not self._handed_over and (self._guard.cancel_called or _now() >= self._term.deadline):
            self._lose(self._overdue(), cause=self._cause)

    async def _keep_renewing(self) -> None:
        """Renew until cancelled, lost or handed over. Never raises."""
        failures = 0
        wake_at = self._term.next_renewal(random.random())
        with self._renewing:
            while True:
                await anyio.sleep(max(0.0, wake_at - _now()))
                async with self._asking:
                    if self._lost is not None or self._handed_over or self._guard.cancel_called:
                        return
                    failures = 0 if await self._renew() else failures + 1
                if failures:
                    wake_at = _now() + _RENEWING_AGAIN.delay(failures, random.random())
                else:
                    wake_at = self._term.next_renewal(random.random())

    async def _renew(self) -> bool:
        """Renew once; False when the server could not be asked, which alone loses nothing before the deadline."""
        asked_at = _now()
        if asked_at >= self._term.deadline:
            self._lose(self._overdue(), cause=self._cause)
            return False
        try:
            with anyio.move_on_after(self._term.patience(asked_at)):
                if await self._provider.renew_lease(self.key, self.owner, self._rules.ttl_ms, **self._with_token):
                    self._cause = None
                    self._term.renewed(asked_at)
                    self._guard.deadline = _on_the_loop(self._term.deadline)
                else:
                    self._lose("another owner took it, or it ran out", gone=True)
                return True
            self._cause = LeaseUnavailable(self.key, "a renewal was not answered")
        except HubClosed as error:
            self._lose("the hub was closed", cause=error)
        except WrongKeyType as error:
            self._lose("its key was overwritten with another type", cause=error, gone=True)
        except Exception as error:
            self._cause = error
        logger.info("lease %r could not be renewed: %s", self.key, self._cause)
        return False


@asynccontextmanager
async def hold_lease(
    provider: LeaseProvider,
    key: str,
    *,
    ttl: float | None = None,
    wait: float | None = None,
    owner: str | None = None,
    renew_interval: float | None = None,
) -> AsyncIterator[Lease]:
    """Hold a lease during a block; it renews itself, and its loss cancels the block.

    Args:
        provider: where the lease is.
        key: the lease's key.
        ttl: seconds; by default what the policy says, else 15.
        wait: seconds to wait for it while another holds it or the server is away; None does not wait.
        owner: who we are to others; by default a name that no other holding has. Two holdings with one name are one
            to the server: give a name only where it is certain that just one of its kind runs.
        renew_interval: seconds between renewals, at most half of the TTL; by default what the policy says, else a
            third of the TTL.

    Raises:
        ConfigError: an argument is not usable; nothing was sent.
        LeaseHeld: another owner holds it, and did so until the wait was over.
        LeaseUnavailable: the server could not be asked in time.
        LeaseLost: the lease was lost; the block was cancelled, or had ended without noticing.
    """
    rules = _rules_of(provider, key).adjusted(ttl, renew_interval)
    owner = f"{socket.gethostname()}:{uuid.uuid4()}" if owner is None else check_owner(owner)
    lease = await _take(provider, key, owner, rules, check_wait(wait))
    failure: BaseException | None = None
    background = anyio.create_task_group()
    await background.__aenter__()
    try:
        with lease._guard:
            background.start_soon(lease._keep_renewing)
            yield lease
        lease._check_the_end()
    except BaseException as error:
        failure = error
    # The group is left by hand and without the block's exception, which it would wrap into a group of exceptions.
    # Shielded, because a cancellation from outside must not keep us from giving the lease back. What is cancelled is
    # the renewal, not the group: that would cancel this task too, which mixes badly with a `task.cancel()` under way.
    background.cancel_scope.shield = True
    lease._renewing.cancel()
    try:
        await background.__aexit__(None, None, None)
    finally:
        if not lease._gone:
            await _release(provider, key, owner, lease.token)
    if failure is not None:
        raise failure
    if lease._lost is not None:
        raise lease._loss()


def _on_the_loop(moment: float) -> float:
    """A moment of the holder's clock on that of the event loop."""
    return anyio.current_time() + (moment - _now())


def _rules_of(provider: object, key: str) -> LeaseRules:
    check_lease_key(key)
    rules_of = getattr(provider, "lease_rules", None)
    return cast("LeaseRules", rules_of(key)) if callable(rules_of) else LeaseRules()


async def _take(provider: Any, key: str, owner: str, rules: LeaseRules, wait: float) -> Lease:
    """Acquire, and leave nothing behind if that fails: a request that was not answered may have been granted."""
    attempts = _Attempts(provider, key, owner, rules)
    give_up_at = _now() + wait
    refusals = 0
    try:
        while True:
            left = give_up_at - _now()
            lease = await attempts.once(max(left, _SHORTEST_TRY) if wait else math.inf)
            if lease is not None:
                return lease
            left = give_up_at - _now()
            if left <= 0:
                raise attempts.failure
            refusals += 1
            await anyio.sleep(min(attempts.pause(refusals), left))
    except BaseException:
        if attempts.maybe_ours:
            await _release(provider, key, owner, None)
        raise


class _Attempts:
    """Attempts to acquire one lease, and what the last one came to."""

    def __init__(self, provider: Any, key: str, owner: str, rules: LeaseRules) -> None:
        self._provider = provider
        self._key, self._owner, self._rules = key, owner, rules
        self.failure: StreamholdError = LeaseUnavailable(key, "not asked yet")
        self.maybe_ours = False
        self._held_for: float | None = None

    async def once(self, limit: float) -> Lease | None:
        """Try once for at most so many seconds (and the TTL: later answers are about a lease that has ended)."""
        was_maybe_ours, self.maybe_ours = self.maybe_ours, True
        self._held_for = None
        asked_at = _now()
        try:
            with anyio.move_on_after(min(limit, self._rules.ttl_ms / 1000 + _SHORTEST_TRY)):
                grant = await self._provider.acquire_lease(self._key, self._owner, self._rules.ttl_ms)
                return self._judge(grant, Term(self._rules, asked_at))
            self.failure = LeaseUnavailable(self._key, "acquiring it was not answered in time")
        except StreamholdError as error:
            if not any(isinstance(one, OutcomeUnknown) for one in (error, error.__cause__)):
                self.maybe_ours = was_maybe_ours  # certainly not executed
            if not error.retryable and not isinstance(error, OutcomeUnknown):
                raise
            self.failure = error
        return None

    def _judge(self, grant: Any, term: Term) -> Lease | None:
        acquired, holder, *more = grant  # a provider that is not ours may answer with a plain pair
        if not acquired:
            self.maybe_ours = False
            held_for_ms = getattr(grant, "held_for_ms", None)
            self._held_for = None if held_for_ms is None else held_for_ms / 1000
            self.failure = LeaseHeld(self._key, holder)
            return None
        if _now() >= term.deadline:
            self.failure = LeaseUnavailable(self._key, "the answer to acquiring it came when its TTL had ended")
            return None
        token = more[0] if more else None
        return Lease(self._provider, self._key, self._owner, token, self._rules, term)

    def pause(self, failures: int) -> float:
        """How long to wait before the next attempt: less and less often, but at once when the lease should end."""
        pause = _POLLING.delay(failures, random.random())
        if self._held_for is not None:
            pause = min(pause, self._held_for + _SPREAD * random.random())
        return max(pause, _SHORTEST_PAUSE)


async def _release(provider: Any, key: str, owner: str, token: int | None) -> None:
    """Give a lease back, whatever happens around; a failure is told in the log, and the TTL ends the lease then."""
    with_token = {} if token is None else {"token": token}
    try:
        with anyio.move_on_after(_RELEASE_LIMIT, shield=True):
            await provider.release_lease(key, owner, **with_token)
            return
        logger.warning("releasing lease %r was not answered; it ends with its TTL", key)
    except HubClosed:
        logger.info("lease %r could not be released, the hub is closed; it ends with its TTL", key)
    except Exception as error:
        logger.warning("lease %r could not be released, it ends with its TTL: %s", key, error)
