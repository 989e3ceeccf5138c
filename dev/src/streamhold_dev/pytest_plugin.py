"""Pytest fixtures: real servers for the tests, started when the first test asks for them.

Loaded by the root pyproject (`-p streamhold_dev.pytest_plugin`). Servers are shared by a session, and the control plane
by all workers of a session; isolation is by key prefix and namespace. Tests that kill or restart use `own_redis`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from streamhold_dev import flavours
from streamhold_dev.proxy import Proxy

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

ADMIN_PASSWORD = "admin-password-of-the-tests"  # of servers on loopback that live as long as the run
_numbers = itertools.count(1)


class RedisFleet:
    """The servers of one session by flavour, each started on first use."""

    def __init__(self) -> None:
        self.running: dict[str, RedisServer] = {}

    def __getitem__(self, flavour: str) -> RedisServer:
        from streamhold_dev.redisserver import RedisServer

        if flavour not in self.running:
            self.running[flavour] = RedisServer(flavour, password=ADMIN_PASSWORD).start()
        return self.running[flavour]

    def stop(self) -> None:
        """End all of them."""
        for server in self.running.values():
            server.stop()


@pytest.fixture(scope="session")
def redis_fleet() -> Iterator[RedisFleet]:
    """The session's servers by flavour: `redis_fleet["redis-6.2"]`."""
    fleet = RedisFleet()
    yield fleet
    fleet.stop()


@pytest.fixture(scope="session")
def redis_server(redis_fleet: RedisFleet) -> RedisServer:
    """The session's server (Valkey, with a password and ACLs); shared, so use `key_prefix` and never FLUSHALL."""
    return redis_fleet[flavours.DEFAULT]


@pytest.fixture(scope="session", params=list(flavours.FLAVOURS))
def redis_flavour(request: pytest.FixtureRequest) -> str:
    """The name of each flavour in turn; one that this machine lacks is skipped, and fails where CI is set."""
    name: str = request.param
    try:
        flavours.flavour(name).binary()
    except flavours.FlavourMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    return name


@pytest.fixture(scope="session")
def any_redis_server(redis_fleet: RedisFleet, redis_flavour: str) -> RedisServer:
    """The session's server of each flavour in turn; shared like `redis_server`."""
    return redis_fleet[redis_flavour]


@pytest.fixture
def own_redis() -> Iterator[Callable[..., RedisServer]]:
    """Start servers of the test's own, to kill and restart: `own_redis(flavour, appendonly=True, …)`."""
    from streamhold_dev.redisserver import RedisServer

    started: list[RedisServer] = []

    def start(flavour: str = flavours.DEFAULT, **options: Any) -> RedisServer:
        server = RedisServer(flavour, **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def key_prefix(request: pytest.FixtureRequest, redis_fleet: RedisFleet) -> Iterator[str]:
    """A key prefix of the test's own on the shared servers; keys that have it in their name are deleted afterwards."""
    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:8]
    prefix = f"t:{digest}:{next(_numbers)}"
    yield prefix
    for server in redis_fleet.running.values():
        server.delete_keys(prefix)


@pytest.fixture
def proxy() -> Iterator[Callable[[int], Proxy]]:
    """Put misbehaving proxies before servers: `proxy(redis_server.port)`."""
    started: list[Proxy] = []

    def start(target_port: int) -> Proxy:
        started.append(Proxy(target_port).start())
        return started[-1]

    yield start
    for one in started:
        one.stop()
