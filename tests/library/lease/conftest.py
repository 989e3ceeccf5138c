"""Lease providers on real servers, and a plain client beside them: what a TypeScript pod or an administrator does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from streamhold._backends.redis.client import RedisClient
from streamhold._backends.redis.lease import RedisLeases
from streamhold._core.lease import LeaseRules

if TYPE_CHECKING:
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
