"""Leases by the policies of a binding: where they live and which rules hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import redis.asyncio

from streamhold import keys
from streamhold._backends.redis.client import RedisClient
from streamhold._backends.redis.lease import RedisLeases
from streamhold._binding import Binding, ClientRef, ConnectionSettings, LeaseBinding
from streamhold._lease import hold_lease
from streamhold.errors import LeaseLost, LeaseNotDeclared

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio


def a_policy(name: str, prefix: str, **changes: Any) -> LeaseBinding:
    settings: dict[str, Any] = {
        "name": name,
        "keys": name,
        "prefix": prefix,
        "ttl_ms": 15000,
        "renew_interval_ms": 5000,
        "lock_delay_ms": 0,
        "fencing": True,
        "max_hold_ms": 0,
        **changes,
    }
    return LeaseBinding(**settings)


@pytest.fixture
async def bound(redis_server: RedisServer, key_prefix: str) -> AsyncIterator[RedisLeases]:
    binding = Binding(
        folder=Path("binding"),
        client=ClientRef(namespace="shop", name="checkout"),
        connection=ConnectionSettings(topology="Standalone", endpoints=(f"127.0.0.1:{redis_server.port}",), database=0),
        topics=(),
        leases=(
            a_policy("jobs/", f"{key_prefix}:shop", ttl_ms=4000, renew_interval_ms=1000),
            a_policy("short/", f"{key_prefix}:shop", ttl_ms=1000, renew_interval_ms=300, max_hold_ms=200),
            a_policy("plain/", f"{key_prefix}:shop", fencing=False, lock_delay_ms=60_000),
            a_policy("billing/locks/", f"{key_prefix}:billing", keys="locks/"),
        ),
        ca_certificate=None,
    )
    client = RedisClient.from_url(redis_server.url())
    yield RedisLeases.for_binding(client, binding)
    await client.aclose()


async def test_a_lease_lives_below_the_prefix_of_its_policy_and_has_the_ttl_of_it(
    bound: RedisLeases, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    shop, billing = f"{key_prefix}:shop", f"{key_prefix}:billing"
    async with hold_lease(bound, "jobs/x") as one, hold_lease(bound, "billing/locks/y") as other:
        assert await plain.get(f"{shop}:lease:jobs/x") == one.owner
        assert 3000 < await plain.pttl(f"{shop}:lease:jobs/x") <= 4000
        assert await plain.get(f"{billing}:lease:locks/y") == other.owner
        assert one.key == "jobs/x"
        assert other.key == "billing/locks/y"
    assert {key async for key in plain.scan_iter(f"{key_prefix}*", count=1000)} == {
        keys.floor_key(shop, "jobs/"),
        keys.floor_key(billing, "locks/"),
    }


async def test_the_policy_limits_the_holding(bound: RedisLeases) -> None:
    with pytest.raises(LeaseLost, match=r"0\.2 s at most"):
        async with hold_lease(bound, "short/x"):
            await anyio.sleep_forever()


async def test_a_policy_without_fencing_gives_no_token_and_its_lock_delay_holds(
    bound: RedisLeases, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    async with hold_lease(bound, "plain/x") as lease:
        assert lease.token is None
    assert await bound.acquire_lease("plain/x", "a", 15000) == (True, "a", None)
    await plain.delete(f"{key_prefix}:shop:lease:plain/x")
    assert (await bound.acquire_lease("plain/x", "b", 15000))[:2] == (False, "a")


async def test_a_key_in_no_family_granted_is_refused_by_every_call(bound: RedisLeases) -> None:
    for call in (
        lambda: bound.acquire_lease("other/x", "a", 1000),
        lambda: bound.get_lease_owner("other/x"),
        lambda: bound.release_lease("other/x", "a"),
        lambda: bound.renew_lease("other/x", "a", 1000),
        lambda: bound.transfer_lease("other/x", "a", "b", 1000),
    ):
        with pytest.raises(LeaseNotDeclared, match=r"'other/x'.*shop/checkout.*'jobs/\*'"):
            await call()
    with pytest.raises(LeaseNotDeclared):
        async with hold_lease(bound, "other/x"):
            pytest.fail("entered")
