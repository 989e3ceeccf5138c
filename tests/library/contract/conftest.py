"""The worlds that the contract is held against: one backend each, several hubs in it, and what a third party sees.

A capability that a backend lacks is asserted by a test of its own, never skipped. What needs a server (to watch it, to
kill it, to cut its connections, to set up its users) asks for `server_world` or `own_world`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from support.worlds import AnyHub, InProcessWorld, RedisWorld, World

if TYPE_CHECKING:
    from streamhold_dev.pytest_plugin import RedisFleet
    from streamhold_dev.redisserver import RedisServer

SERVERS = ["redis-6.2", "redis-8.2", "valkey-9.1"]
"""The oldest server, and the newest of either product."""


@pytest.fixture(params=["inprocess", *SERVERS])
async def world(request: pytest.FixtureRequest, key_prefix: str) -> AsyncIterator[World]:
    """Each world in turn."""
    async with AsyncExitStack() as stack:
        if request.param == "inprocess":
            yield InProcessWorld(key_prefix, stack)
        else:
            fleet: RedisFleet = request.getfixturevalue("redis_fleet")
            yield await _on(fleet[request.param], key_prefix, stack)


@pytest.fixture(params=SERVERS)
async def server_world(
    request: pytest.FixtureRequest, redis_fleet: RedisFleet, key_prefix: str
) -> AsyncIterator[RedisWorld]:
    """Each world behind a network in turn."""
    async with AsyncExitStack() as stack:
        yield await _on(redis_fleet[request.param], key_prefix, stack)


@pytest.fixture
async def own_world(own_redis: Any, key_prefix: str) -> AsyncIterator[RedisWorld]:
    """A world with a server of its own, to be killed, emptied or filled."""
    server = own_redis(appendonly=True)
    async with AsyncExitStack() as stack:
        yield await _on(server, key_prefix, stack)


@pytest.fixture
def hub(world: World) -> AnyHub:
    """One hub of the world."""
    hub: AnyHub = world.hub()
    return hub


async def _on(server: RedisServer, prefix: str, stack: AsyncExitStack) -> RedisWorld:
    return RedisWorld(server, prefix, await stack.enter_async_context(server.client()), stack)
