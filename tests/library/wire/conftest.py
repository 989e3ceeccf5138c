"""Clients of the tests in this folder, closed when the test ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from streamhold._backends.redis.client import RedisClient

Connect = Callable[..., RedisClient]


@pytest.fixture
async def connect(anyio_backend: str) -> AsyncIterator[Connect]:
    """Make clients: `connect(url, timeout=…)`."""
    made: list[RedisClient] = []

    def make(url: str, **options: Any) -> RedisClient:
        made.append(RedisClient.from_url(url, **options))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()
