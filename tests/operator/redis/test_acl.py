"""Rules as real servers take them, tell them and enforce them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import redis.asyncio
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError

from streamhold.keys import companion, floor_key, lease_key
from streamhold_dev.redisserver import RedisServer
from streamhold_operator.adapters.redis import RedisAdmin
from streamhold_operator.domain.acl import UserRule, client_rule, owner_marker
from streamhold_operator.domain.actions import DeleteUser, SetUser
from streamhold_operator.domain.client import password_digest
from streamhold_operator.domain.grants import LeaseGrant, TopicGrant
from support.operator_objects import lease_grant, topic_grant

pytestmark = pytest.mark.anyio
AdminOf = Callable[..., RedisAdmin]
MARKER = owner_marker("cluster", "uid")
PASSWORD = "correct horse"


async def grant(admin: RedisAdmin, name: str, *grants: TopicGrant | LeaseGrant, database: int = 0) -> UserRule:
    """Make a user with these grants."""
    facts = await admin.probe()
    rule = client_rule(
        marker=MARKER,
        topics=[one for one in grants if isinstance(one, TopicGrant)],
        leases=[one for one in grants if isinstance(one, LeaseGrant)],
        passwords=[password_digest(PASSWORD)],
        abilities=facts.abilities,
        database=database,
    )
    (result,) = await admin.apply([SetUser(username=name, rule=rule)])
    assert result.failure is None
    return rule


@asynccontextmanager
async def logged_in(server: RedisServer, name: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A connection of that user."""
    async with server.client(username=name, password=PASSWORD, driver_info=None) as client:
        yield client


@pytest.fixture
async def admin(any_redis_server: RedisServer, admin_of: AdminOf, key_prefix: str) -> AsyncIterator[RedisAdmin]:
    """The admin of each server in turn; users named after the test's key prefix are deleted afterwards."""
    admin = admin_of(any_redis_server)
    yield admin
    leftovers = [name for name in any_redis_server.cli("ACL", "USERS") if name.startswith(key_prefix)]
    await admin.apply([DeleteUser(username=name, marker=MARKER) for name in leftovers])


def kinds_of_grants(prefix: str) -> dict[str, tuple[TopicGrant | LeaseGrant, ...]]:
    """Grants of every shape."""
    return {
        "nothing": (),
        "one topic": (topic_grant("orders", "Publish", prefix=prefix),),
        "all access": (topic_grant("orders", "Publish", "Consume", "Manage", prefix=prefix),),
        "a family": (topic_grant("run.", "Publish", "Consume", prefix=prefix, family=True),),
        "leases": (lease_grant("jobs/", prefix=prefix),),
        "many": (
            *(topic_grant(f"topic-{number}", "Consume", prefix=prefix) for number in range(40)),
            topic_grant("sagas", "Manage", prefix=prefix),
            topic_grant("orders", "Publish", prefix=prefix),
            lease_grant("jobs/", prefix=prefix),
            lease_grant("reports-", prefix=prefix),
        ),
    }


@pytest.mark.parametrize("shape", list(kinds_of_grants("")))
@pytest.mark.parametrize("database", [0, 3])
async def test_a_rule_that_was_set_is_read_back_equal(
    admin: RedisAdmin, key_prefix: str, shape: str, database: int
) -> None:
    name = f"{key_prefix}.user"
    rule = await grant(admin, name, *kinds_of_grants(key_prefix)[shape], database=database)
    assert (await admin.observe({}, [name])).users[name] == rule


@pytest.mark.parametrize(
    "change",
    [
        "+get",
        "allkeys",
        "~more:*",
        "&more",
        "nopass",
        "off",
        ">another",
        "resetpass",
        "-ping",
        "resetchannels",
        "+@read",
    ],
)
async def test_any_change_by_hand_is_seen(
    admin: RedisAdmin, any_redis_server: RedisServer, key_prefix: str, change: str
) -> None:
    name = f"{key_prefix}.user"
    rule = await grant(admin, name, topic_grant("orders", "Publish", prefix=key_prefix))
    any_redis_server.cli("ACL", "SETUSER", name, change)
    assert (await admin.observe({}, [name])).users[name] != rule


async def test_a_user_that_is_not_there_is_none(admin: RedisAdmin, key_prefix: str) -> None:
    assert (await admin.observe({}, [f"{key_prefix}.nobody"])).users == {f"{key_prefix}.nobody": None}


async def test_a_publisher_publishes_to_its_topic_and_nowhere_else(
    admin: RedisAdmin, any_redis_server: RedisServer, key_prefix: str
) -> None:
    name, orders, other = f"{key_prefix}.publisher", f"{key_prefix}:orders", f"{key_prefix}:other"
    await grant(admin, name, topic_grant("orders", "Publish", prefix=key_prefix))
    async with logged_in(any_redis_server, name) as client:
        async with client.pipeline(transaction=True) as transaction:
            transaction.xadd(orders, {"event": "{}"}, maxlen=10)
            transaction.pexpire(orders, 60_000)
            await transaction.execute()
        for refused in (
            lambda: client.xadd(other, {"event": "{}"}),
            lambda: client.xadd(f"{orders}2", {"event": "{}"}),
            lambda: client.xgroup_create(orders, "g"),
            lambda: client.xread({orders: "0"}),
            lambda: client.delete(orders),
            lambda: client.get(lease_key(key_prefix, "jobs/1")),
            lambda: client.xadd(companion(key_prefix, "dead", orders), {"event": "{}"}),
            lambda: client.hgetall("streamhold:owners"),
            lambda: client.publish(MARKER, "hello"),
            lambda: client.execute_command("ACL", "LIST"),
            lambda: client.keys("*"),
            lambda: client.flushall(),
            lambda: client.config_get("*"),
        ):
            with pytest.raises(NoPermissionError):
                await refused()


async def test_a_consumer_reads_all_its_topics_in_one_command_and_no_other(
    admin: RedisAdmin, any_redis_server: RedisServer, key_prefix: str
) -> None:
    name, orders, bills, other = (f"{key_prefix}.consumer", *(f"{key_prefix}:{topic}" for topic in ("a", "b", "other")))
    await grant(
        admin,
        name,
        topic_grant("a", "Consume", prefix=key_prefix),
        topic_grant("b", "Consume", prefix=key_prefix),
    )
    async with logged_in(any_redis_server, name) as client:
        for key in (orders, bills):
            await client.xgroup_create(key, "g", "0", mkstream=True)
            await client.xadd(key, {"event": "{}"})
        read = await client.xreadgroup("g", "c", {orders: ">", bills: ">"})
        assert {key for key, _ in read} == {orders, bills}
        ids = [entries[0][0] for _, entries in read]
        assert await client.xack(orders, "g", ids[0]) == 1
        dead = companion(key_prefix, "dead", bills)
        script = "redis.call('XADD', KEYS[2], '*', 'a', 'b') return redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])"
        assert await client.eval(script, 2, bills, dead, "g", ids[1]) == 1
        await client.xautoclaim(orders, "g", "c", 0)
        await client.xinfo_groups(orders)
        await client.xgroup_delconsumer(orders, "g", "c")
        for refused in (
            lambda: client.xreadgroup("g", "c", {orders: ">", other: ">"}),
            lambda: client.xgroup_create(other, "g", mkstream=True),
            lambda: client.eval(script, 2, bills, companion(key_prefix, "dead", other), "g", ids[1]),
            lambda: client.delete(orders),
            lambda: client.xtrim(orders, 0),
            lambda: client.set(orders, "x"),
        ):
            with pytest.raises(NoPermissionError):
                await refused()


async def test_a_lease_holder_has_its_family_with_fence_and_floor_and_no_other(
    admin: RedisAdmin, any_redis_server: RedisServer, key_prefix: str
) -> None:
    name, lease = f"{key_prefix}.scheduler", lease_key(key_prefix, "jobs/nightly")
    await grant(admin, name, lease_grant("jobs/", prefix=key_prefix))
    script = """
        local now = redis.call('TIME')
        redis.call('SET', KEYS[1], ARGV[1], 'PX', 1000)
        redis.call('SET', KEYS[2], now[1], 'PX', 1000)
        return redis.call('SET', KEYS[3], now[1])
    """
    fence, floor = companion(key_prefix, "fence", lease), floor_key(key_prefix, "jobs/")
    async with logged_in(any_redis_server, name) as client:
        await client.eval(script, 3, lease, fence, floor, "me")
        assert await client.get(lease) == "me"
        foreign = lease_key(key_prefix, "other/nightly")
        for refused in (
            lambda: client.set(foreign, "me"),
            lambda: client.eval(script, 3, foreign, fence, floor, "me"),
            lambda: client.eval(script, 3, lease, companion(key_prefix, "fence", foreign), floor, "me"),
            lambda: client.eval(script, 3, lease, fence, floor_key(key_prefix, "other/"), "me"),
            lambda: client.set(f"{key_prefix}:orders", "x"),
            lambda: client.xadd(f"{key_prefix}:orders", {"event": "{}"}),
        ):
            with pytest.raises(NoPermissionError):
                await refused()


async def test_two_clients_are_each_refused_what_only_the_other_was_granted(
    admin: RedisAdmin, any_redis_server: RedisServer, key_prefix: str
) -> None:
    names = f"{key_prefix}.one", f"{key_prefix}.two"
    topics = f"{key_prefix}:one", f"{key_prefix}:two"
    for name, topic in zip(names, ("one", "two"), strict=True):
        await grant(admin, name, topic_grant(topic, "Publish", "Consume", "Manage", prefix=key_prefix))
    await uses_its_own_topic_only(any_redis_server, names[0], topics[0], topics[1])
    await uses_its_own_topic_only(any_redis_server, names[1], topics[1], topics[0])


async def uses_its_own_topic_only(server: RedisServer, name: str, own: str, foreign: str) -> None:
    async with logged_in(server, name) as client:
        await client.xadd(own, {"event": "{}"})
        await client.xrange(own)
        await client.xtrim(own, 0)
        for refused in (
            lambda: client.xadd(foreign, {"event": "{}"}),
            lambda: client.xrange(foreign),
            lambda: client.delete(foreign),
            lambda: client.xgroup_create(foreign, "g"),
            lambda: client.xread({own: "0", foreign: "0"}),
        ):
            with pytest.raises(NoPermissionError):
                await refused()


async def test_selectors_keep_the_rights_of_one_topic_from_another_where_the_server_has_them(
    admin: RedisAdmin, any_redis_server: RedisServer, key_prefix: str
) -> None:
    name, written, read = f"{key_prefix}.both", f"{key_prefix}:written", f"{key_prefix}:read"
    await grant(
        admin,
        name,
        topic_grant("written", "Publish", prefix=key_prefix),
        topic_grant("read", "Consume", prefix=key_prefix),
        lease_grant("jobs/", prefix=key_prefix),
    )
    selectors = (await admin.probe()).abilities.selectors
    async with logged_in(any_redis_server, name) as client:
        for doubtful in (
            lambda: client.xread({written: "0"}),
            lambda: client.xgroup_create(written, "g", mkstream=True),
            lambda: client.delete(read),
        ):
            if selectors:
                with pytest.raises(NoPermissionError):
                    await doubtful()
            else:  # Redis 6.2: commands are the union, on all granted keys (documented)
                await doubtful()


async def test_rights_that_are_taken_away_are_gone_for_connections_that_are_open(
    admin: RedisAdmin, any_redis_server: RedisServer, key_prefix: str
) -> None:
    name, key = f"{key_prefix}.user", f"{key_prefix}:orders"
    orders = topic_grant("orders", "Publish", prefix=key_prefix)
    await grant(admin, name, orders, topic_grant("bills", "Publish", prefix=key_prefix))
    async with logged_in(any_redis_server, name) as client:
        await client.xadd(f"{key_prefix}:bills", {"event": "{}"})
        await grant(admin, name, orders)
        with pytest.raises(NoPermissionError):
            await client.xadd(f"{key_prefix}:bills", {"event": "{}"})
        await client.xadd(key, {"event": "{}"})
        await admin.apply([DeleteUser(username=name, marker=MARKER)])
        with pytest.raises((AuthenticationError, ConnectionError)):
            await client.xadd(key, {"event": "{}"})


async def test_the_users_survive_a_restart_where_there_is_an_aclfile(
    own_redis: Callable[..., RedisServer], admin_of: AdminOf, redis_flavour: str
) -> None:
    server = own_redis(redis_flavour, password="secret", aclfile=True)
    admin = admin_of(server)
    rule = await grant(admin, "kept", topic_grant("orders", "Publish"))
    await grant(admin, "deleted", topic_grant("orders", "Publish"))
    await admin.apply([DeleteUser(username="deleted", marker=MARKER)])
    server.kill()
    server.start()
    assert (await admin.observe({}, ["kept", "deleted"])).users == {"kept": rule, "deleted": None}


async def test_a_users_file_that_cannot_be_written_is_told_and_tried_again(
    own_redis: Callable[..., RedisServer], admin_of: AdminOf
) -> None:
    server = own_redis(password="secret", aclfile=True)
    admin = admin_of(server)
    facts = await admin.probe()
    users = server.folder / "users.acl"
    kept = users.read_bytes()
    users.unlink()
    users.mkdir()  # a rename onto a folder fails, for root too
    rule = client_rule(marker=MARKER, topics=[], leases=[], passwords=[], abilities=facts.abilities)
    (result,) = await admin.apply([SetUser(username="user", rule=rule)])
    assert result.failure is None
    assert result.warning is not None
    assert "aclfile" in result.warning
    users.rmdir()
    users.write_bytes(kept)
    (result,) = await admin.apply([SetUser(username="user", rule=rule)])
    assert result.warning is None
    assert b"user user" in users.read_bytes()


async def test_a_user_of_somebody_else_is_not_deleted(
    admin: RedisAdmin, any_redis_server: RedisServer, key_prefix: str
) -> None:
    name = f"{key_prefix}.user"
    await grant(admin, name)
    (result,) = await admin.apply([DeleteUser(username=name, marker=owner_marker("cluster", "another"))])
    assert result.failure is None
    assert name in any_redis_server.cli("ACL", "USERS")
