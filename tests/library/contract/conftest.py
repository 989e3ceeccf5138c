"""The worlds that the contract is held against: one backend each, several hubs in it, and what a third party sees.

A capability that a backend lacks is asserted by a test of its own, never skipped. InProcess joins here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import streamhold
from support.worlds import RedisWorld

if TYPE_CHECKING:
    from streamhold_dev.pytest_plugin import RedisFleet

SERVERS = ["redis-6.2", "redis-8.2", "valkey-9.1"]
"""The oldest server, and the newest of either product."""


@pytest.fixture(params=SERVERS)
async def world(request: pytest.FixtureRequest, redis_fleet: RedisFleet, key_prefix: str) -> AsyncIterator[RedisWorld]:
    """Each world in turn."""
    server = redis_fleet[request.param]
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(server.client())
        yield RedisWorld(server, key_prefix, plain, stack)


@pytest.fixture
async def own_world(own_redis: Any, key_prefix: str) -> AsyncIterator[RedisWorld]:
    """A world with a server of its own, to be killed, emptied or filled."""
    server = own_redis(appendonly=True)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(server.client())
        yield RedisWorld(server, key_prefix, plain, stack)


@pytest.fixture
def hub(world: RedisWorld) -> streamhold.RedisStreamsPubSub:
    """One hub of the world."""
    return world.hub()
