"""A model of leases against a real server, with a pod that knows no tokens in between (C-40 to C-47).

The other pod does what the TypeScript package does: SET NX PX, compare-and-expire, compare-and-set, compare-and-delete
on the lease key alone. Time passes by taking away what would have expired.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import redis
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from streamhold import keys
from streamhold._backends.redis.client import RedisClient
from streamhold._backends.redis.lease import RedisLeases
from streamhold._core.lease import LeaseRules

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

TTL = 600_000
OWNERS = st.sampled_from(["a", "b", "c d"])
_COMPARE_AND = {
    name: f"if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end redis.call({what}) return 1"
    for name, what in {
        "expire": "'PEXPIRE', KEYS[1], ARGV[2]",
        "set": "'SET', KEYS[1], ARGV[2], 'PX', ARGV[3]",
        "delete": "'DEL', KEYS[1]",
    }.items()
}


class World:
    """A server with our provider and the other pod's plain client on it."""

    def __init__(self, server: RedisServer, prefix: str, portal: BlockingPortal, lock_delay_ms: int) -> None:
        self.prefix = prefix
        self.lock_delay_ms = lock_delay_ms
        self.portal = portal
        self.plain = redis.Redis.from_url(server.url(), decode_responses=True)
        self.client = RedisClient.from_url(server.url())
        rules = LeaseRules(ttl_ms=TTL, lock_delay_ms=lock_delay_ms)
        self.leases = RedisLeases.for_prefix(self.client, prefix, rules)
        self.examples = 0

    def close(self) -> None:
        self.portal.call(self.client.aclose)
        self.plain.close()


class Machine(RuleBasedStateMachine):
    """What the lease, its record and the tokens must be after each step."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.holder: str | None = None
        self.record: tuple[int, str] | None = None
        self.newest: tuple[int, str] = (0, "")
        """The largest token seen by anybody, and whose it was."""

    @initialize()
    def fresh_key(self) -> None:
        self.world.examples += 1
        self.name = f"k{self.world.examples}"
        self.key = keys.lease_key(self.world.prefix, self.name)
        self.fence = keys.companion(self.world.prefix, "fence", self.key)

    def ask(self, method: str, *args: Any) -> Any:
        return self.world.portal.call(getattr(self.world.leases, method), self.name, *args)

    # ---- our pods ----

    @rule(owner=OWNERS)
    def acquire(self, owner: str) -> None:
        grant = self.ask("acquire_lease", owner, TTL)
        if self.holder not in (None, owner):
            assert grant == (False, self.holder, None)
        elif self.holder is None and self._delayed(owner):
            assert self.record is not None
            assert grant == (False, self.record[1], None)
        else:
            assert grant[:2] == (True, owner)
            same = self.holder == owner and self.record is not None and self.record[1] == owner
            self._given(grant.token, owner, expected=self.record[0] if same and self.record else None)

    def _delayed(self, owner: str) -> bool:
        return self.world.lock_delay_ms > 0 and self.record is not None and self.record[1] != owner

    def _given(self, token: int, owner: str, expected: int | None) -> None:
        if expected is not None:
            assert token == expected
        # Whatever happened: no token is given to two holders, and none after a larger one.
        assert (token, owner) == self.newest or token > self.newest[0]
        self.newest = (token, owner)
        self.record = (token, owner)
        self.holder = owner

    @rule(owner=OWNERS)
    def renew(self, owner: str) -> None:
        assert self.ask("renew_lease", owner, TTL) == (self.holder == owner)
        if self.holder == owner:
            self._learn_record(owner)

    def _learn_record(self, owner: str) -> None:
        token, _, named = (self.world.plain.get(self.fence) or "").partition(" ")
        assert named == owner
        kept = self.record is not None and self.record[1] == owner
        self._given(int(token), owner, expected=self.record[0] if kept and self.record else None)

    @rule(owner=OWNERS, right=st.booleans())
    def renew_this_very_holding(self, owner: str, right: bool) -> None:
        token = self.record[0] if right and self.record is not None else 5
        holds = self.holder == owner and self.record == (token, owner)
        renewed = self.world.portal.call(lambda: self.world.leases.renew_lease(self.name, owner, TTL, token=token))
        assert renewed == holds

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        self.ask("release_lease", owner)
        if self.holder == owner:
            self.holder = self.record = None
        elif self.holder is None and self.record is not None and self.record[1] == owner:
            self.record = None

    @rule(owner=OWNERS, to=OWNERS)
    def transfer(self, owner: str, to: str) -> None:
        assert self.ask("transfer_lease", owner, to, TTL) == (self.holder == owner)
        if self.holder == owner:
            if owner != to:
                self.record = None
            self._learn_record(to)

    # ---- the other pod ----

    @rule(owner=OWNERS)
    def other_pod_acquires(self, owner: str) -> None:
        if self.world.plain.set(self.key, owner, px=TTL, nx=True):
            assert self.holder is None
            self.holder = owner
        else:
            assert self._other("expire", owner, TTL) == (self.holder == owner)

    @rule(owner=OWNERS)
    def other_pod_renews(self, owner: str) -> None:
        assert self._other("expire", owner, TTL) == (self.holder == owner)

    @rule(owner=OWNERS)
    def other_pod_releases(self, owner: str) -> None:
        if self._other("delete", owner):
            assert self.holder == owner
            self.holder = None

    @rule(owner=OWNERS, to=OWNERS)
    def other_pod_transfers(self, owner: str, to: str) -> None:
        if self._other("set", owner, to, TTL):
            assert self.holder == owner
            self.holder = to

    def _other(self, what: str, *args: Any) -> bool:
        return bool(self.world.plain.eval(_COMPARE_AND[what], 1, self.key, *args))

    # ---- time ----

    @precondition(lambda self: self.holder is not None)
    @rule()
    def the_lease_runs_out(self) -> None:
        self.world.plain.delete(self.key)
        self.holder = None
        if not self.world.lock_delay_ms:
            self.world.plain.delete(self.fence)
            self.record = None

    @precondition(lambda self: self.record is not None)
    @rule()
    def the_record_runs_out(self) -> None:
        """The lock delay is over; or the other pod renewed the lease and not the record."""
        self.world.plain.delete(self.fence)
        self.record = None

    @rule()
    def the_server_forgets_the_floor(self) -> None:
        """As after a restart that lost it; the clock has gone on."""
        self.world.plain.delete(keys.floor_key(self.world.prefix))

    # ---- always ----

    @invariant()
    def everybody_sees_the_same_holder(self) -> None:
        assert self.world.plain.get(self.key) == self.holder
        assert self.ask("get_lease_owner") == self.holder

    @invariant()
    def the_record_is_what_we_wrote_and_ends(self) -> None:
        expected = None if self.record is None else f"{self.record[0]} {self.record[1]}"
        assert self.world.plain.get(self.fence) == expected
        assert self.world.plain.pttl(self.key) != -1
        assert self.world.plain.pttl(self.fence) != -1

    def teardown(self) -> None:
        self.world.plain.delete(self.key, self.fence)


@contextmanager
def a_world(server: RedisServer, prefix: str, lock_delay_ms: int) -> Iterator[World]:
    with start_blocking_portal() as portal:
        world = portal.call(World, server, prefix, portal, lock_delay_ms)
        try:
            yield world
        finally:
            world.close()


@pytest.mark.parametrize("lock_delay_ms", [0, 600_000])
def test_leases_behave_like_their_model_beside_a_pod_without_tokens(
    redis_server: RedisServer, key_prefix: str, lock_delay_ms: int
) -> None:
    with a_world(redis_server, key_prefix, lock_delay_ms) as world:
        run_state_machine_as_test(
            lambda: Machine(world), settings=settings(max_examples=30, stateful_step_count=40, deadline=None)
        )
        assert world.examples >= 30


def test_the_model_is_not_blind(redis_server: RedisServer, key_prefix: str) -> None:
    """A provider that gives the token of the record to whoever the lease names is found out."""
    from streamhold.types import LeaseGrant

    class Careless(RedisLeases):
        async def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> LeaseGrant:
            fence = keys.companion(key_prefix, "fence", keys.lease_key(key_prefix, key))
            record = await self._client.execute("GET", fence)
            grant = await super().acquire_lease(key, owner, ttl_ms)
            return LeaseGrant(True, owner, int(record.split(b" ")[0])) if grant.acquired and record else grant

    with a_world(redis_server, key_prefix, 0) as world:
        world.leases.__class__ = Careless
        with pytest.raises(AssertionError):
            run_state_machine_as_test(
                lambda: Machine(world),
                settings=settings(max_examples=200, deadline=None, database=None, phases=[Phase.generate]),
            )
