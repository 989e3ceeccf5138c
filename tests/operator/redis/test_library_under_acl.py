"""The library does its whole work as the user and with the binding that the operator makes, on every server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

import streamhold
from streamhold_dev.redisserver import RedisServer
from streamhold_dev.waiting import eventually
from streamhold_operator.adapters.redis import RedisAdmin
from streamhold_operator.domain import client as domain
from streamhold_operator.domain.actions import DeleteUser, SetUser
from streamhold_operator.domain.binding import BindingConnection, binding_data
from streamhold_operator.domain.connection import Endpoint
from support.operator_objects import a_client, lease_grant, topic_grant

pytestmark = pytest.mark.anyio
PASSWORD = "a password: 100% of it / is odd"


@pytest.fixture
async def binding(
    any_redis_server: RedisServer, admin_of: Callable[..., RedisAdmin], key_prefix: str, tmp_path: Path
) -> AsyncIterator[Path]:
    """The folder of a mounted binding whose user exists on the server."""
    server, admin = any_redis_server, admin_of(any_redis_server)
    topics = (
        topic_grant("orders", "Publish", "Consume", prefix=key_prefix, groups=("billing",), maxLength=1000),
        topic_grant("brief", "Publish", "Consume", prefix=key_prefix, idleTtl="1h", maxDeliveryAttempts=2,
                    deadLetter={"enabled": True}),
        topic_grant("run.", "Publish", "Consume", "Manage", prefix=key_prefix, family=True),
        topic_grant("outbox", "Publish", prefix=key_prefix),
    )  # fmt: skip
    leases = (lease_grant("jobs/", prefix=key_prefix, lockDelay="100ms"), lease_grant("plain-", prefix=key_prefix))
    want = domain.Want.of(
        a_client(username=f"{key_prefix}.app"),
        cluster="cluster",
        topics=topics,
        leases=leases,
        passwords=(domain.password_digest(PASSWORD),),
    )
    rule = want.rule((await admin.probe()).abilities)
    (result,) = await admin.apply([SetUser(username=want.username, rule=rule)])
    assert result.failure is None
    entries = binding_data(
        namespace="shop",
        client="app",
        username=want.username,
        password=PASSWORD,
        connection=BindingConnection(endpoints=(Endpoint(server.host, server.port),)),
        topics=topics,
        leases=leases,
    )
    for name, value in entries.items():
        (tmp_path / name).write_bytes(value)
    server.cli("ACL", "LOG", "RESET")
    yield tmp_path
    denied = [entry for entry in server.cli("ACL", "LOG") if entry["username"] == want.username]
    await admin.apply([DeleteUser(username=want.username, marker=want.marker)])
    assert [(entry["reason"], entry["object"]) for entry in denied] == []


@pytest.mark.parametrize("topic", ["orders", "brief", "run.7"])
async def test_events_are_published_shared_and_redelivered(binding: Path, topic: str) -> None:
    seen: list[int] = []
    everything: list[int] = []

    async def all_of_them(event: dict[str, object], ack: Callable[[], object], nack: Callable[[], object]) -> None:
        everything.append(event["data"])  # type: ignore[arg-type]
        await ack()  # type: ignore[misc]

    async with streamhold.connect(binding) as hub:
        await hub.subscribe(topic, all_of_them)
        for number in range(20):
            await hub.publish(topic, {"type": "t", "data": number, "runId": "r"})
        async with hub.messages(topic, group="billing", max_in_flight=8) as messages:
            with anyio.fail_after(20):
                async for message in messages:
                    if message.event["data"] == 3 and message.attempt == 1:
                        await message.nack()
                        continue
                    seen.append(message.event["data"])
                    await message.ack()
                    if len(seen) == 20:
                        break
        await eventually(lambda: sorted(everything) == list(range(20)))
        await hub.unsubscribe(topic, all_of_them)
    assert sorted(seen) == list(range(20))


async def test_topics_are_added_to_a_reader_at_work(binding: Path) -> None:
    seen: list[str] = []

    async def handle(event: dict[str, object], ack: Callable[[], object], nack: Callable[[], object]) -> None:
        seen.append(event["data"])  # type: ignore[arg-type]
        await ack()  # type: ignore[misc]

    async with streamhold.connect(binding) as hub:
        for topic in ("orders", "run.1", "run.2", "brief"):
            await hub.publish(topic, {"type": "t", "data": topic, "runId": "r"})
            await hub.subscribe(topic, handle, group="billing")
            await anyio.sleep(0.05)  # long enough for the reader to block again
        await eventually(lambda: sorted(seen) == ["brief", "orders", "run.1", "run.2"])


async def test_what_fails_too_often_reaches_the_dead_letters(
    binding: Path, any_redis_server: RedisServer, key_prefix: str
) -> None:
    dead = f"{key_prefix}:streamhold:dead:{{{key_prefix}:brief}}"
    async with streamhold.connect(binding) as hub:
        await hub.publish("brief", {"type": "t", "data": 1, "runId": "r"})

        async def never(event: object, ack: object, nack: Callable[[], object]) -> None:
            await nack()  # type: ignore[misc]

        await hub.subscribe("brief", never, group="billing")
        await eventually(lambda: any_redis_server.cli("XLEN", dead) == 1, timeout=20)


async def test_a_topic_is_cleared_where_that_was_granted(
    binding: Path, any_redis_server: RedisServer, key_prefix: str
) -> None:
    async with streamhold.connect(binding) as hub:
        await hub.publish("run.1", {"type": "t", "data": 1, "runId": "r"})
        await hub.clear_topic("run.1")
    assert any_redis_server.cli("EXISTS", f"{key_prefix}:run.1") == 0


async def test_leases_are_taken_kept_and_moved(binding: Path) -> None:
    async with streamhold.connect(binding) as hub:
        for key in ("jobs/nightly", "plain-1"):
            async with hub.hold_lease(key, owner="one") as lease:
                assert lease.token is not None
                assert await hub.renew_lease(key, "one", 5000)
                assert not (await hub.acquire_lease(key, "two", 5000)).acquired
            assert (await hub.acquire_lease(key, "one", 5000)).acquired
            assert await hub.transfer_lease(key, "one", "two", 5000)
            assert await hub.get_lease_owner(key) == "two"
            await hub.release_lease(key, "two")


async def test_what_was_not_granted_is_refused_before_anything_is_sent(binding: Path) -> None:
    async with streamhold.connect(binding) as hub:
        with pytest.raises(streamhold.TopicNotDeclared):
            await hub.publish("other", {"type": "t", "data": 1, "runId": "r"})
        with pytest.raises(streamhold.AccessNotGranted):
            async with hub.messages("outbox", group="g"):
                pass
        with pytest.raises(streamhold.LeaseNotDeclared):
            await hub.acquire_lease("other/1", "me", 5000)
