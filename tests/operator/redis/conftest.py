"""Admins on real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from streamhold_dev.redisserver import RedisServer
from streamhold_operator.adapters.redis import AdminTarget, RedisAdmin
from streamhold_operator.domain.connection import Endpoint


def target_of(server: RedisServer, **changes: Any) -> AdminTarget:
    """The target of a server's admin."""
    login: dict[str, Any] = {}
    if server.password:
        login = {"username": server.admin_username, "password": server.password}
    return AdminTarget(**{"endpoint": Endpoint(server.host, server.port), **login, **changes})


@pytest.fixture
async def admin_of() -> AsyncIterator[Callable[..., RedisAdmin]]:
    """Make admins: `admin_of(server)`, `admin_of(server, password="…")`; closed after the test."""
    made: list[RedisAdmin] = []

    def make(server: RedisServer, *, timeout: float = 3.0, **changes: Any) -> RedisAdmin:
        made.append(RedisAdmin(target_of(server, **changes), timeout=timeout))
        return made[-1]

    yield make
    for admin in made:
        await admin.aclose()
