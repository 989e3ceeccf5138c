"""Lease providers on real servers and in process, and a plain client beside them: what another program does.

`each_leases` and `each_plain` are for the rules that hold everywhere; what needs a server to watch, to stop or to
set up its users asks for `any_leases` or `leases`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from streamhold import InProcessServer
from streamhold._backends.inprocess.server import InProcessClient
from streamhold._backends.redis.client import RedisClient
from streamhold._backends.redis.lease import RedisLeases
from streamhold._core.lease import LeaseRules
from streamhold_dev import flavours
from support.inprocess import PlainInProcess
from support.worlds import LeaseWorld

if TYPE_CHECKING:
    from streamhold_dev.pytest_plugin import RedisFleet
    from streamhold_dev.redisserver import RedisServer


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., RedisLeases]]:
    """Make a provider for a server's port or URL, a prefix and rules; its client is closed afterwards."""
    async with AsyncExitStack() as stack:

        def make(url: str, prefix: str, *, timeout: float = 10.0, **rules: object) -> RedisLeases:
            client = RedisClient.from_url(url, timeout=timeout)
            stack.push_async_callback(client.aclose)
            return RedisLeases.for_prefix(client, prefix, LeaseRules(**rules))  # type: ignore[arg-type]

        yield make


@pytest.fixture
async def leases(connect: Callable[..., RedisLeases], redis_server: RedisServer, key_prefix: str) -> RedisLeases:
    """A provider on the session's server."""
    return connect(redis_server.url(), key_prefix)


@pytest.fixture
async def any_leases(
    connect: Callable[..., RedisLeases], any_redis_server: RedisServer, key_prefix: str
) -> RedisLeases:
    """A provider on a server of each flavour in turn."""
    return connect(any_redis_server.url(), key_prefix)


@pytest.fixture
async def plain(redis_server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    """A plain client of the session's server."""
    async with redis_server.client() as client:
        yield client


@pytest.fixture
async def any_plain(any_redis_server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    """A plain client of the server that `any_leases` uses."""
    async with any_redis_server.client() as client:
        yield client


@pytest.fixture(params=["inprocess", *flavours.FLAVOURS])
async def lease_world(
    request: pytest.FixtureRequest, connect: Callable[..., RedisLeases], redis_fleet: RedisFleet, key_prefix: str
) -> AsyncIterator[LeaseWorld]:
    """Each backend in turn, a server of each flavour among them."""
    if request.param == "inprocess":
        server = InProcessServer()

        def make(**rules: object) -> RedisLeases:
            return RedisLeases.for_prefix(InProcessClient(server), key_prefix, LeaseRules(**rules))  # type: ignore[arg-type]

        yield LeaseWorld(make, PlainInProcess(server))
        return
    url = redis_fleet[request.param].url()
    async with redis_fleet[request.param].client() as plain:
        yield LeaseWorld(lambda **rules: connect(url, key_prefix, **rules), plain)


@pytest.fixture
def each_leases(lease_world: LeaseWorld) -> RedisLeases:
    """A provider on each backend in turn."""
    return lease_world.provider()


@pytest.fixture
def each_plain(lease_world: LeaseWorld) -> redis.asyncio.Redis:
    """A plain client of what `each_leases` uses."""
    return lease_world.plain
