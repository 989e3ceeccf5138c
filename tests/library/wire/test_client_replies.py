"""What each server answers, and what a caller makes of it: on every flavour."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import pytest

from streamhold._backends.redis.client import Prepared, RedisClient, Script
from streamhold.errors import (
    AuthenticationFailed,
    BackendError,
    HubClosed,
    OutcomeUnknown,
    PermissionRefused,
    ServerFull,
    WrongKeyType,
)

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio
Connect = Callable[..., RedisClient]

APPEND = Script("append", "redis.call('XADD', KEYS[1], '*', 'event', ARGV[1]) return redis.call('XLEN', KEYS[1])")


async def test_commands_and_their_replies(any_redis_server: RedisServer, key_prefix: str, connect: Connect) -> None:
    client = connect(any_redis_server.url())
    key = f"{key_prefix}:stream"
    assert await client.execute("PING") == b"PONG"
    entry = await client.execute("XADD", key, "MAXLEN", "~", 1000, "*", b"event", '{"ü": 1}')
    assert await client.execute("XRANGE", key, "-", "+") == [[entry, [b"event", '{"ü": 1}'.encode()]]]
    assert await client.execute("GET", f"{key_prefix}:none") is None


async def test_a_transaction_is_one_step_and_answers_each_command(
    any_redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    client = connect(any_redis_server.url())
    key = f"{key_prefix}:stream"
    entry, expires = await client.transaction([("XADD", key, "*", "event", "{}"), ("PEXPIRE", key, 60_000)])
    assert (await client.execute("XRANGE", key, "-", "+"))[0][0] == entry
    assert expires == 1
    assert 0 < await client.execute("PTTL", key) <= 60_000


async def test_a_transaction_with_an_error_while_queueing_runs_nothing_and_names_the_command_at_fault(
    any_redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    client = connect(any_redis_server.url())
    with pytest.raises(BackendError, match="wrong number of arguments for 'pexpire'"):
        await client.transaction([("SET", f"{key_prefix}:a", 1), ("PEXPIRE", f"{key_prefix}:a")])
    assert await client.execute("EXISTS", f"{key_prefix}:a") == 0


async def test_a_transaction_with_an_error_while_running_raises_it(
    any_redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    client = connect(any_redis_server.url())
    key = f"{key_prefix}:text"
    await client.execute("SET", key, "text")
    with pytest.raises(WrongKeyType, match=f"XADD '{key}'"):
        await client.transaction([("XADD", key, "*", "event", "{}"), ("PEXPIRE", key, 60_000)])


async def test_a_prepared_write_with_an_expiry_is_one_step(
    any_redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    client, key = connect(any_redis_server.url()), f"{key_prefix}:stream"
    add = ("XADD", key, "MAXLEN", "~", 100, "*", "event")
    first = await client.execute_prepared(Prepared(add), b"1")
    second, expires = await client.execute_prepared(Prepared(add, ("PEXPIRE", key, 60_000)), b"2")
    assert expires == 1
    assert await client.execute("XRANGE", key, "-", "+") == [[first, [b"event", b"1"]], [second, [b"event", b"2"]]]
    assert await client.execute_prepared(Prepared(("GET",)), f"{key_prefix}:none".encode()) is None
    await client.execute("SET", f"{key_prefix}:text", "text")
    wrong = Prepared(("XADD", f"{key_prefix}:text", "*", "event"), ("PEXPIRE", f"{key_prefix}:text", 60_000))
    with pytest.raises(WrongKeyType, match=f"XADD '{key_prefix}:text'"):
        await client.execute_prepared(wrong, b"x")


async def test_a_transaction_of_a_user_who_may_not_make_one_is_not_called_refused_when_it_ran(
    any_redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    user, key = f"{key_prefix}:user", f"{key_prefix}:k"
    any_redis_server.cli("ACL", "SETUSER", user, "reset", "on", ">secret", f"~{key_prefix}:*", "+set", "+get")
    try:
        client = connect(any_redis_server.url(user, "secret"))
        with pytest.raises(OutcomeUnknown, match="MULTI"):
            await client.transaction([("SET", key, "ran")])
        assert await client.execute("GET", key) == b"ran"
        with pytest.raises(PermissionRefused):
            await client.transaction([("XADD", key, "*", "event", "{}")])
        assert await client.execute("GET", key) == b"ran"
    finally:
        any_redis_server.cli("ACL", "DELUSER", user)


async def test_a_script_runs_the_first_time_and_after_script_flush(
    any_redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    client = connect(any_redis_server.url())
    script = Script("own", APPEND.source + f" -- {key_prefix}")
    assert await client.run_script(script, [f"{key_prefix}:s"], ["one"]) == 1
    assert await client.run_script(script, [f"{key_prefix}:s"], ["two"]) == 2
    await client.execute("SCRIPT", "FLUSH")
    assert await client.run_script(script, [f"{key_prefix}:s"], ["three"]) == 3
    assert await client.execute("SCRIPT", "EXISTS", script.sha) == [1], "its digest is not the server's"


async def test_an_error_inside_a_script_keeps_its_meaning(
    any_redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    client = connect(any_redis_server.url())
    key = f"{key_prefix}:text"
    await client.execute("SET", key, "text")
    for _ in ("by text", "by digest"):
        with pytest.raises(WrongKeyType) as error:
            await client.run_script(APPEND, [key], ["x"])
        assert (error.value.code, key in str(error.value)) == ("WRONGTYPE", True)


async def test_a_key_of_another_type_is_named(any_redis_server: RedisServer, key_prefix: str, connect: Connect) -> None:
    client = connect(any_redis_server.url())
    await client.execute("SET", f"{key_prefix}:text", "a secret value")
    with pytest.raises(WrongKeyType) as error:
        await client.execute("XADD", f"{key_prefix}:text", "*", "event", "somebody's data")
    assert f"{key_prefix}:text" in str(error.value)
    assert client.server_label in str(error.value)
    assert "somebody's data" not in str(error.value)


async def test_a_refused_command_and_a_refused_key_are_named(
    any_redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    user = f"{key_prefix}:user"
    any_redis_server.cli(
        "ACL", "SETUSER", user, "reset", "on", ">secret", f"~{key_prefix}:mine", "+ping", "+xadd", "+eval", "+evalsha"
    )
    try:
        client = connect(any_redis_server.url(user, "secret"))
        assert await client.execute("PING") == b"PONG", "a refused CLIENT SETNAME must not matter"
        with pytest.raises(PermissionRefused, match=f"XADD '{key_prefix}:theirs'") as error:
            await client.execute("XADD", f"{key_prefix}:theirs", "*", "event", "{}")
        assert error.value.code == "NOPERM"
        with pytest.raises(PermissionRefused, match=f"XLEN '{key_prefix}:mine'"):
            await client.execute("XLEN", f"{key_prefix}:mine")
        with pytest.raises(PermissionRefused):
            await client.run_script(APPEND, [f"{key_prefix}:mine"], ["x"])
    finally:
        any_redis_server.cli("ACL", "DELUSER", user)


@pytest.mark.parametrize("login", [("default", "wrong"), ("nobody", "wrong"), (None, "wrong"), (None, None)])
async def test_a_wrong_or_missing_password_is_told_at_once_and_never_shown(
    any_redis_server: RedisServer, connect: Connect, login: tuple[str | None, str | None]
) -> None:
    url = any_redis_server.url(*login) if login[1] else f"redis://{any_redis_server.host}:{any_redis_server.port}/0"
    client = connect(url, timeout=20)
    started = asyncio.get_running_loop().time()
    with pytest.raises(AuthenticationFailed) as error:
        await client.execute("PING")
    assert asyncio.get_running_loop().time() - started < 5
    assert "wrong" not in str(error.value).lower().replace("wrongpass", "")
    assert error.value.server == client.server_label


async def test_the_database_of_the_url_is_selected(
    any_redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    third = connect(any_redis_server.url(database=3))
    await third.execute("SET", f"{key_prefix}:where", "here", "PX", 5000)
    assert await connect(any_redis_server.url()).execute("EXISTS", f"{key_prefix}:where") == 0
    assert third.server_label.endswith("/3")
    with pytest.raises(BackendError, match="DB index"):
        await connect(any_redis_server.url(database=999)).execute("PING")


async def test_connections_bear_a_name(any_redis_server: RedisServer, connect: Connect) -> None:
    client = connect(any_redis_server.url())
    assert (await client.execute("CLIENT", "GETNAME")).startswith(b"streamhold-commands-")
    reader = await client.open_reader("my group ü")
    assert reader.connection_id is None
    await reader.connect()
    assert reader.connection_id is not None
    assert (await reader.execute("CLIENT", "GETNAME", block=0)).startswith(b"streamhold-reader-my_group__-")
    assert reader.connection_id == await reader.execute("CLIENT", "ID", block=0)


async def test_a_server_without_memory_is_told_apart(
    own_redis: Callable[..., RedisServer], redis_flavour: str, connect: Connect
) -> None:
    server = own_redis(redis_flavour, config={"maxmemory": "1mb", "maxmemory-policy": "noeviction"})
    client = connect(server.url())
    writes = [client.execute("XADD", "big", "*", "event", b"x" * 50_000) for _ in range(100)]
    refused = [each for each in await asyncio.gather(*writes, return_exceptions=True) if isinstance(each, Exception)]
    assert {type(each) for each in refused} == {ServerFull}
    assert "XADD 'big'" in str(refused[0])


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_cancellations_never_shifts_a_reply(
    any_redis_server: RedisServer, connect: Connect, seed: int
) -> None:
    client, random = connect(any_redis_server.url()), Random(seed)
    await client.execute("PING")

    async def ask(n: int) -> None:
        if n % 5 == 0:
            assert await client.transaction([("ECHO", n), ("ECHO", -n)]) == [b"%d" % n, b"%d" % -n]
        else:
            assert await client.execute("ECHO", n) == b"%d" % n

    asked: list[asyncio.Task[None]] = []
    for n in range(3000):
        asked.append(asyncio.create_task(ask(n)))
        if random.random() < 0.3:
            random.choice(asked[-50:]).cancel()
        if random.random() < 0.05:
            await asyncio.sleep(random.choice([0, 0, 0.001]))
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    wrong = [each for each in outcomes if each is not None and not isinstance(each, asyncio.CancelledError)]
    assert wrong == []
    assert sum(each is None for each in outcomes) > 1000
    assert await client.execute("ECHO", "last") == b"last"


async def test_values_of_any_size_and_content_come_back_as_they_were(
    any_redis_server: RedisServer, key_prefix: str, connect: Connect
) -> None:
    client = connect(any_redis_server.url())
    values = [b"", b"\r\n", bytes(range(256)), b"x" * 70_000, b"y" * (20 << 20)]
    keys = [f"{key_prefix}:{n}" for n in range(len(values))]
    await asyncio.gather(*(client.execute("SET", key, value) for key, value in zip(keys, values, strict=True)))
    assert await client.execute("MGET", *keys) == values


async def test_calls_after_close_say_so(any_redis_server: RedisServer, connect: Connect) -> None:
    client = connect(any_redis_server.url())
    reader = await client.open_reader("group")
    await client.execute("PING")
    await client.aclose()
    await client.aclose()
    for call in (
        client.execute("PING"),
        client.transaction([("PING",)]),
        client.run_script(APPEND, ["k"]),
        client.open_reader("another"),
        reader.execute("PING", block=0),
    ):
        with pytest.raises(HubClosed):
            await call
