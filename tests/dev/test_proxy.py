"""The misbehaving proxy does to a connection what it says, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamhold_dev.proxy import Proxy
from streamhold_dev.redisserver import RedisServer
from streamhold_dev.waiting import eventually_sync

MakeProxy = Callable[[int], Proxy]


@pytest.fixture
def between(redis_server: RedisServer, proxy: MakeProxy) -> Proxy:
    return proxy(redis_server.port)


@pytest.fixture
def client(redis_server: RedisServer, between: Proxy):
    never = Retry(NoBackoff(), 0)
    options = {"password": redis_server.password, "decode_responses": True, "socket_timeout": 0.5, "retry": never}
    with redis.Redis(port=between.port, single_connection_client=True, **options) as client:
        assert client.ping()
        yield client


def test_it_passes_large_values_both_ways(client: redis.Redis, key_prefix: str) -> None:
    value = "x" * 3_000_000
    client.set(f"{key_prefix}:big", value)
    assert client.get(f"{key_prefix}:big") == value


@pytest.mark.parametrize(("direction", "expected"), [("requests", 0.1), ("replies", 0.1), ("both", 0.2)])
def test_a_delay_holds_back_the_direction_it_names(client: redis.Redis, between: Proxy, direction, expected) -> None:
    between.delay(0.1, direction)

    started = time.monotonic()
    client.ping()
    took = time.monotonic() - started

    assert expected <= took < expected + 0.09
    between.delay(0)
    client.ping()


def test_a_swallowed_reply_leaves_its_write_on_the_server(
    client: redis.Redis, between: Proxy, redis_server: RedisServer, key_prefix: str
) -> None:
    between.swallow_replies()
    with pytest.raises(redis.TimeoutError):
        client.incr(f"{key_prefix}:n")

    assert redis_server.cli("GET", f"{key_prefix}:n") == "1"


def test_a_swallowed_request_never_reaches_the_server(
    client: redis.Redis, between: Proxy, redis_server: RedisServer, key_prefix: str
) -> None:
    between.swallow_requests()
    with pytest.raises(redis.TimeoutError):
        client.incr(f"{key_prefix}:n")

    assert redis_server.cli("GET", f"{key_prefix}:n") is None


def test_the_reply_to_one_named_request_is_dropped_with_its_connection(
    client: redis.Redis, between: Proxy, redis_server: RedisServer, key_prefix: str
) -> None:
    between.drop_reply_to(b"INCR")
    client.ping()
    with pytest.raises(redis.ConnectionError):
        client.incr(f"{key_prefix}:n")

    assert client.incr(f"{key_prefix}:n") == 2  # a new connection, and only one reply was dropped


def test_connections_that_lost_bytes_are_cut_when_everything_passes_again(client: redis.Redis, between: Proxy) -> None:
    between.swallow_requests()
    connection = client.connection
    assert connection is not None
    connection.send_command("PING")
    eventually_sync(lambda: any(link.lost_bytes for link in between._links))

    between.pass_through()

    with pytest.raises(redis.ConnectionError):
        connection.read_response()
    assert client.ping()
    assert between.accepted == 2


def test_cut_ends_open_connections_and_accepts_new_ones(client: redis.Redis, between: Proxy) -> None:
    assert between.connections == 1
    between.cut()
    assert between.connections == 0

    with pytest.raises(redis.ConnectionError):
        client.ping()
    assert client.ping()


def test_refused_connections_come_back_on_the_same_port(client: redis.Redis, between: Proxy) -> None:
    between.refuse()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    with pytest.raises(redis.ConnectionError, match="refused"):
        client.ping()

    between.pass_through()

    assert client.ping()


def test_a_server_that_is_down_ends_the_clients_connection(own_redis, proxy: MakeProxy) -> None:
    server = own_redis()
    between = proxy(server.port)
    server.kill()

    with redis.Redis(port=between.port, retry=Retry(NoBackoff(), 0)) as client, pytest.raises(redis.ConnectionError):
        client.ping()
