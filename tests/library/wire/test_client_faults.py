"""Servers and networks that fail: what is retried, what a caller is told, and how soon (C-22)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from streamhold._backends.redis.client import RedisClient, Script
from streamhold.errors import AuthenticationFailed, BackendError, BackendUnavailable, HubClosed, OutcomeUnknown
from streamhold_dev.waiting import eventually

if TYPE_CHECKING:
    from streamhold_dev.proxy import Proxy
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio
Connect = Callable[..., RedisClient]
StartProxy = Callable[[int], "Proxy"]
StartRedis = Callable[..., "RedisServer"]


def now() -> float:
    return asyncio.get_running_loop().time()


def through(proxy: Proxy, server: RedisServer) -> str:
    return server.url().replace(f":{server.port}/", f":{proxy.port}/")


@pytest.fixture
def wire(redis_server: RedisServer, proxy: StartProxy) -> tuple[str, Proxy]:
    """The shared server behind a proxy: its URL, and the proxy."""
    between = proxy(redis_server.port)
    return through(between, redis_server), between


# ---- lost replies ----


async def test_case_S20_a_lost_reply_of_a_write_is_an_unknown_outcome_and_the_write_happened_once(
    wire: tuple[str, Proxy], redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    url, between = wire
    client, key = connect(url), f"{key_prefix}:stream"
    await client.execute("PING")
    between.drop_reply_to(b"XADD")
    with pytest.raises(OutcomeUnknown, match=f"XADD '{key}'"):
        await client.execute("XADD", key, "*", "event", "{}")
    assert redis_server.cli("XLEN", key) == 1
    assert await client.execute("XLEN", key) == 1, "the client must go on after a loss"


async def test_a_lost_reply_of_an_idempotent_command_is_followed_by_another_try(
    wire: tuple[str, Proxy], key_prefix: str, connect: Connect
) -> None:
    url, between = wire
    client = connect(url)
    await client.execute("PING")
    between.drop_reply_to(b"SET")
    assert await client.execute("SET", f"{key_prefix}:k", 1, idempotent=True) == b"OK"


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_lost_reply_of_a_transaction_or_script_follows_the_same_rule(
    wire: tuple[str, Proxy], key_prefix: str, connect: Connect, idempotent: bool
) -> None:
    url, between = wire
    client, script = connect(url), Script("get", "return redis.call('SET', KEYS[1], ARGV[1])")
    await client.run_script(script, [f"{key_prefix}:k"], ["0"])
    calls: list[Callable[[], Any]] = [
        lambda: client.transaction([("SET", f"{key_prefix}:k", "1")], idempotent=idempotent),
        lambda: client.run_script(script, [f"{key_prefix}:k"], ["2"], idempotent=idempotent),
    ]
    for call in calls:
        between.drop_reply_to(f"{key_prefix}:k".encode())
        if idempotent:
            assert await call() in ([b"OK"], b"OK")
        else:
            with pytest.raises(OutcomeUnknown):
                await call()


async def test_a_connection_that_is_open_and_dead_is_given_up_and_replaced(
    wire: tuple[str, Proxy], connect: Connect
) -> None:
    url, between = wire
    client = connect(url, timeout=2)
    await client.execute("PING")
    between.swallow_replies()
    started = now()
    with pytest.raises(OutcomeUnknown):
        await client.execute("PING")
    assert now() - started <= 2.2
    between.pass_through()
    assert await client.execute("PING") == b"PONG"
    assert between.accepted == 2


async def test_an_idempotent_command_on_a_dead_connection_gets_another_one_within_its_deadline(
    wire: tuple[str, Proxy], connect: Connect
) -> None:
    url, between = wire
    client = connect(url, timeout=4)
    await client.execute("PING")
    between.swallow_requests()
    asking = asyncio.create_task(client.execute("PING", idempotent=True))
    await asyncio.sleep(0.1)
    between.pass_through()
    assert await asking == b"PONG"


async def test_a_timeout_tells_that_the_outcome_is_unknown_and_the_late_reply_reaches_nobody(
    wire: tuple[str, Proxy], connect: Connect
) -> None:
    url, between = wire
    client = connect(url)
    await client.execute("PING")
    between.delay(0.4, "replies")
    started = now()
    with pytest.raises(OutcomeUnknown):
        await client.execute("ECHO", "slow", timeout=0.1)
    assert now() - started < 0.3
    assert await client.execute("ECHO", "next") == b"next"
    assert between.accepted == 1, "one slow reply is no reason to drop the connection of all"


# ---- servers that are down ----


async def test_a_server_that_is_not_there_fails_calls_by_their_deadline_as_not_executed(
    wire: tuple[str, Proxy], connect: Connect
) -> None:
    url, between = wire
    between.refuse()
    client = connect(url)
    started = now()
    with pytest.raises(BackendUnavailable, match="XADD 'k'") as error:
        await client.execute("XADD", "k", "*", "event", "{}", timeout=0.5)
    assert 0.4 < now() - started < 1.0
    assert client.server_label in str(error.value)
    assert "refused" in str(error.value) or "Connect call failed" in str(error.value)


async def test_an_address_that_does_not_resolve_is_named(connect: Connect) -> None:
    client = connect("redis://no-such-host.invalid:6379/0", timeout=1)
    with pytest.raises(BackendUnavailable, match=r"no-such-host\.invalid"):
        await client.execute("PING")


async def test_calls_wait_for_a_server_that_comes_up_within_their_deadline(
    wire: tuple[str, Proxy], connect: Connect
) -> None:
    url, between = wire
    between.refuse()
    client = connect(url)
    asking = [asyncio.create_task(client.execute("ECHO", n)) for n in range(20)]
    await asyncio.sleep(0.3)
    between.pass_through()
    assert await asyncio.gather(*asking) == [b"%d" % n for n in range(20)]
    assert between.accepted == 1, "all who wait share one connection"


async def _count_connects(port: int, hang_up: bool) -> tuple[asyncio.Server, list[float]]:
    seen: list[float] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(now())
        if not hang_up:
            await reader.read(1000)
            writer.write(b"+OK\r\n+OK\r\n:7\r\n")
            await reader.read(1000)
        writer.close()

    return await asyncio.start_server(accept, "127.0.0.1", port), seen


@pytest.mark.parametrize("hang_up", [True, False], ids=["at once", "at the first command"])
async def test_a_server_that_hangs_up_is_not_hammered_however_many_call(hang_up: bool, connect: Connect) -> None:
    server, seen = await _count_connects(0, hang_up)
    async with server:
        client = connect(f"redis://:x@127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=2)
        calls = [client.execute("PING", idempotent=True) for _ in range(200)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in outcomes} <= {BackendUnavailable, OutcomeUnknown}
        await client.aclose()
    assert 2 <= len(seen) < 15


async def test_callers_with_tiny_deadlines_do_not_make_more_connects(connect: Connect) -> None:
    server, seen = await _count_connects(0, hang_up=True)
    async with server:
        client = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        until = now() + 1.5
        while now() < until:
            with pytest.raises(BackendUnavailable):
                await client.execute("PING", timeout=0.01)
        await client.aclose()
    assert 2 <= len(seen) < 12


async def test_nothing_is_connected_while_nobody_calls(wire: tuple[str, Proxy], connect: Connect) -> None:
    url, between = wire
    client = connect(url)
    assert between.accepted == 0
    await client.execute("PING")
    between.cut()
    await asyncio.sleep(0.5)
    assert between.accepted == 1
    assert await client.execute("PING") == b"PONG"
    assert between.accepted == 2


async def test_a_wrong_password_is_not_tried_in_a_hot_loop_and_a_right_one_is_taken_up(
    own_redis: StartRedis, connect: Connect
) -> None:
    server = own_redis(password="old")
    client = connect(server.url("default", "new"))
    refused = 0
    until = now() + 1.5
    while now() < until:
        with pytest.raises(AuthenticationFailed):
            await client.execute("PING")
        refused += 1
    assert refused < 12
    server.cli("ACL", "SETUSER", "default", ">new")
    await eventually(lambda: _answers(client), timeout=5)


async def _answers(client: RedisClient) -> bool:
    try:
        return bool(await client.execute("PING") == b"PONG")
    except BackendError:
        return False


async def test_credentials_are_read_again_at_each_connect(own_redis: StartRedis, proxy: StartProxy) -> None:
    server = own_redis(password="first")
    between = proxy(server.port)
    passwords = ["first"]

    class Mounted:
        """As redis-py's credential providers do it."""

        def get_credentials(self) -> tuple[str, str]:
            return ("default", passwords[-1])

    import redis.asyncio

    handed_in = redis.asyncio.Redis(port=between.port, host="127.0.0.1", credential_provider=Mounted())
    client = RedisClient.from_redis_py(handed_in)
    try:
        await client.execute("PING")
        server.cli("ACL", "SETUSER", "default", ">second", "<first")
        server.password = "second"
        passwords.append("second")
        between.cut()
        assert await client.execute("PING", idempotent=True) == b"PONG"
    finally:
        await client.aclose()
        await handed_in.aclose()


# ---- kill and restart ----


@pytest.mark.parametrize("appendonly", [True])
async def test_case_S04_writes_during_a_kill_and_restart_end_and_each_success_is_kept_once(
    own_redis: StartRedis, redis_flavour: str, connect: Connect, appendonly: bool
) -> None:
    server = own_redis(redis_flavour, appendonly=appendonly, config={"appendfsync": "always"})
    client = connect(server.url(), timeout=8)
    done: list[int] = []
    unknown: list[int] = []
    stop = asyncio.Event()
    numbers = iter(range(10**6))

    async def publish() -> None:
        while not stop.is_set():
            n = next(numbers)
            try:
                await client.execute("XADD", "orders", "*", "n", n)
            except OutcomeUnknown:
                unknown.append(n)
            else:
                done.append(n)

    publishers = [asyncio.create_task(publish()) for _ in range(100)]
    await eventually(lambda: len(done) > 300)
    await asyncio.to_thread(server.kill)
    before = len(done)
    await asyncio.sleep(1)
    await asyncio.to_thread(server.start)
    await eventually(lambda: len(done) > before + 300, timeout=10, message="publishing did not go on")
    stop.set()
    async with asyncio.timeout(9):
        await asyncio.gather(*publishers)
    kept = [int(fields[1]) for _, fields in await client.execute("XRANGE", "orders", "-", "+")]
    assert len(kept) == len(set(kept))
    assert set(done) <= set(kept) <= set(done) | set(unknown)
    assert len(unknown) <= 100


async def test_loading_is_waited_out(own_redis: StartRedis, connect: Connect) -> None:
    server = own_redis(appendonly=True, config={"aof-use-rdb-preamble": "no"})
    client = connect(server.url())
    await asyncio.gather(*(client.execute("SET", n, n) for n in range(20_000)))
    server.cli("CONFIG", "SET", "key-load-delay", 100)  # microseconds; it answers others every 1,000 keys
    loading = asyncio.create_task(asyncio.to_thread(server.cli, "DEBUG", "LOADAOF"))
    await eventually(lambda: server.cli("INFO", "persistence")["loading"] == 1, timeout=5)
    assert await client.execute("INCR", "n") == 1
    await loading
    assert 1 <= server.cli("INFO", "errorstats")["errorstat_LOADING"]["count"] < 20


async def test_a_replica_is_not_written_to_until_it_is_a_master_again(
    own_redis: StartRedis, redis_flavour: str, connect: Connect
) -> None:
    server = own_redis(redis_flavour)
    client = connect(server.url())
    await client.execute("SET", "k", 0)
    server.cli("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(BackendUnavailable, match="READONLY"):
        await client.execute("INCR", "k", timeout=0.5)
    with pytest.raises(BackendUnavailable, match="READONLY"):
        await client.transaction([("INCR", "k"), ("PEXPIRE", "k", 99_999)], timeout=0.5)
    with pytest.raises(BackendUnavailable, match="READONLY"):
        await client.run_script(Script("incr", "return redis.call('INCR', KEYS[1])"), ["k"], timeout=0.5)
    writing = asyncio.create_task(client.execute("INCR", "k"))
    await asyncio.sleep(0.3)
    server.cli("REPLICAOF", "NO", "ONE")
    assert await writing == 1
    connects = int(server.cli("INFO", "stats")["total_connections_received"])
    assert connects < 40, "a replica was asked in a hot loop"


# ---- readers ----


async def test_a_blocking_read_waits_and_wakes_while_commands_go_on(
    redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    client, key = connect(redis_server.url()), f"{key_prefix}:list"
    reader = await client.open_reader("group")
    reading = asyncio.create_task(reader.execute("BLPOP", key, 5, block=5))
    started = now()
    await asyncio.sleep(0.1)
    await client.execute("RPUSH", key, "x")
    assert await reading == [key.encode(), b"x"]
    assert now() - started < 1
    assert await reader.execute("BLPOP", key, 0.05, block=0.05) is None


async def test_a_read_may_block_longer_than_the_commands_timeout(redis_server: RedisServer, connect: Connect) -> None:
    client = connect(redis_server.url(), timeout=0.2)
    reader = await client.open_reader("group")
    assert await reader.execute("BLPOP", "t:nothing", 1, block=1) is None


async def test_a_reader_is_told_of_a_loss_and_comes_back(wire: tuple[str, Proxy], connect: Connect) -> None:
    url, between = wire
    client = connect(url)
    reader = await client.open_reader("group")
    reading = asyncio.create_task(reader.execute("BLPOP", "t:nothing", 5, block=5))
    await eventually(lambda: between.connections == 1)
    await asyncio.sleep(0.1)
    between.cut()
    with pytest.raises(OutcomeUnknown, match="BLPOP"):
        await reading
    assert await reader.execute("PING", block=0) == b"PONG"


# ---- closing ----


async def test_close_ends_while_the_server_is_down_and_fails_what_waits(
    own_redis: StartRedis, connect: Connect
) -> None:
    server = own_redis()
    client = connect(server.url(), timeout=30)
    reader = await client.open_reader("group")
    reading = asyncio.create_task(reader.execute("BLPOP", "k", 20, block=20))
    await client.execute("PING")
    server.kill()
    waiting = [asyncio.create_task(client.execute("SET", "k", n)) for n in range(5)]
    await asyncio.sleep(0.2)
    started = now()
    await client.aclose()
    assert now() - started < 1
    for call in (*waiting, reading):
        with pytest.raises((HubClosed, OutcomeUnknown)):
            await call


async def test_close_ends_while_the_server_does_not_answer(own_redis: StartRedis, connect: Connect) -> None:
    server = own_redis()
    client = connect(server.url(), timeout=30)
    await client.execute("PING")
    server.pause()
    try:
        pending = asyncio.create_task(client.execute("SET", "k", b"x" * (8 << 20)))
        await asyncio.sleep(0.1)
        started = now()
        await client.aclose()
        assert now() - started < 2
        with pytest.raises(OutcomeUnknown):
            await pending
    finally:
        server.resume()


async def test_a_server_that_accepts_and_says_nothing_fails_calls_by_their_deadline(
    own_redis: StartRedis, connect: Connect
) -> None:
    server = own_redis()
    server.pause()
    try:
        client = connect(server.url(), timeout=1)
        started = now()
        with pytest.raises(BackendUnavailable):
            await client.execute("SET", "k", 1)
        assert now() - started < 1.5
    finally:
        server.resume()
