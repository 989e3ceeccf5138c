"""Leases through a hub: what applications call (C-24, C-45, C-47)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

import streamhold
from streamhold import FenceGate, FenceRejected, HubClosed, LeaseHeld, RedisStreamsPubSub, lease_provider_of

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def hub(redis_server: RedisServer, key_prefix: str) -> AsyncIterator[RedisStreamsPubSub]:
    async with streamhold.connect(redis_server.url(), key_prefix=key_prefix) as hub:
        yield hub


async def test_a_hub_is_the_lease_provider_of_its_redis(
    hub: RedisStreamsPubSub, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    assert lease_provider_of(hub) is hub
    acquired, owner, token = await hub.acquire_lease("k", "a", 15000)
    assert (acquired, owner) == (True, "a")
    assert token is not None
    assert await plain.get(f"{key_prefix}:lease:k") == "a"
    assert await hub.renew_lease("k", "a", 15000)
    assert await hub.transfer_lease("k", "a", "b", 15000)
    assert await hub.get_lease_owner("k") == "b"
    await hub.release_lease("k", "b")
    assert await hub.get_lease_owner("k") is None


async def test_two_processes_hold_one_lease_after_the_other_and_the_resource_refuses_the_first(
    hub: RedisStreamsPubSub, redis_server: RedisServer, key_prefix: str
) -> None:
    resource = FenceGate("report")
    async with streamhold.connect(redis_server.url(), key_prefix=key_prefix) as other:
        async with hub.hold_lease("report") as first:
            with pytest.raises(LeaseHeld):
                async with other.hold_lease("report"):
                    pytest.fail("entered")
        async with other.hold_lease("report", wait=5) as second:
            assert first.token is not None
            assert second.token is not None
            resource.admit(second.token)
            with pytest.raises(FenceRejected):
                resource.admit(first.token)


async def test_lease_calls_on_a_closed_hub_raise(hub: RedisStreamsPubSub) -> None:
    await hub.close()
    for call in (
        lambda: hub.acquire_lease("k", "a", 1000),
        lambda: hub.get_lease_owner("k"),
        lambda: hub.release_lease("k", "a"),
        lambda: hub.renew_lease("k", "a", 1000),
        lambda: hub.transfer_lease("k", "a", "b", 1000),
    ):
        with pytest.raises(HubClosed):
            await call()
    with pytest.raises(HubClosed):
        async with hub.hold_lease("k", wait=5):
            pytest.fail("entered")
