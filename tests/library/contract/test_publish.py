"""Publishing (C-1, C-2, C-10, C-11)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from streamhold import (
    ConfigError,
    HubClosed,
    PublishError,
    PublishOutcomeUnknown,
    WrongKeyType,
)
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event

if TYPE_CHECKING:
    from streamhold_dev.proxy import Proxy
    from support.worlds import AnyHub, RedisWorld, World

pytestmark = pytest.mark.anyio


async def test_publish_writes_one_entry_with_all_members(world: World, hub: AnyHub) -> None:
    await hub.publish("orders", an_event({"n": 1}))
    [(_, fields)] = await world.entries("orders")
    assert list(fields) == ["event"]
    event = json.loads(fields["event"])
    assert list(event) == ["type", "data", "runId", "id", "createdAt", "deliveryAttempt"]
    assert event["data"] == {"n": 1}
    assert event["deliveryAttempt"] == 1
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", event["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["createdAt"])


async def test_publish_leaves_the_callers_event_alone(hub: AnyHub) -> None:
    event = an_event(1)
    before = dict(event)
    await hub.publish("orders", event)
    assert event == before


async def test_publish_trims_approximately(world: World) -> None:
    hub = world.hub(max_stream_length=100)
    await _publish_many(hub, 450)
    assert 100 <= await world.plain.xlen(world.key("orders")) <= 220


async def test_publish_keeps_everything_when_the_length_is_0(world: World) -> None:
    hub = world.hub(max_stream_length=0)
    await _publish_many(hub, 450)
    assert await world.plain.xlen(world.key("orders")) == 450


async def test_publish_sets_the_idle_ttl_with_every_write_c11(world: World) -> None:
    hub = world.hub(stream_idle_ttl_ms=60_000)
    await hub.publish("orders", an_event(1))
    assert 55_000 < await world.plain.pttl(world.key("orders")) <= 60_000
    await world.plain.pexpire(world.key("orders"), 5_000)
    await hub.publish("orders", an_event(2))
    assert await world.plain.pttl(world.key("orders")) > 55_000


async def test_reading_and_acknowledging_do_not_refresh_the_idle_ttl_c11(world: World) -> None:
    hub = world.hub(stream_idle_ttl_ms=60_000)
    await hub.publish("orders", an_event(1))
    await world.plain.pexpire(world.key("orders"), 30_000)
    async with hub.messages("orders", group="g") as messages:
        await world.plain.pexpire(world.key("orders"), 30_000)  # the new group has refreshed it
        await (await messages.next(timeout=5)).ack()
    assert await world.plain.pttl(world.key("orders")) <= 30_000


async def test_joining_an_existing_group_does_not_refresh_the_idle_ttl_c11(world: World) -> None:
    hub = world.hub(stream_idle_ttl_ms=60_000)
    await hub.publish("orders", an_event(1))
    await world.plain.xgroup_create(world.key("orders"), "g", "0")
    await world.plain.pexpire(world.key("orders"), 30_000)
    await hub.subscribe("orders", Recorder(), group="g")
    assert await world.plain.pttl(world.key("orders")) <= 30_000


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (object(), "event.data"),
        ({"deep": [1, {2, 3}]}, "event.data.deep[1]"),
        (b"bytes", "event.data"),
        ({1: "number as a name"}, "event.data"),
        (1j, "event.data"),
    ],
)
async def test_what_json_cannot_express_is_refused_before_anything_is_sent(
    world: World, hub: AnyHub, data: Any, where: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        await hub.publish("orders", an_event(data))
    assert refused.value.option == where
    assert not await world.plain.exists(world.key("orders"))


async def test_a_cycle_is_refused_before_anything_is_sent(world: World, hub: AnyHub) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ConfigError, match="cycle"):
        await hub.publish("orders", an_event(cycle))
    assert not await world.plain.exists(world.key("orders"))


@pytest.mark.parametrize("topic", ["", "lease:x", "lease-metadata:x", "streamhold:dead:x", "half\ud800", "a\0b", 7])
async def test_a_topic_that_cannot_be_is_refused_c05(hub: AnyHub, topic: Any) -> None:
    with pytest.raises(ConfigError, match="topic"):
        await hub.publish(topic, an_event())
    with pytest.raises(ConfigError, match="topic"):
        await hub.subscribe(topic, Recorder())


async def test_a_key_of_another_type_reaches_the_publisher_as_an_error(world: World, hub: AnyHub) -> None:
    await world.plain.set(world.key("orders"), "a string")
    with pytest.raises(PublishError, match="orders") as failed:
        await hub.publish("orders", an_event())
    assert isinstance(failed.value.__cause__, WrongKeyType)


async def test_case_S35_local_events_never_reach_redis(world: World, hub: AnyHub) -> None:
    fan_out, grouped, elsewhere = Recorder(), Recorder(), Recorder()
    await hub.subscribe("orders", fan_out)
    await hub.subscribe("orders", grouped, group="g")
    await world.hub().subscribe("orders", elsewhere)
    data = {"marker": object()}  # nothing that JSON could carry
    await hub.publish("orders", an_event(data), local_only=True)
    await eventually(lambda: fan_out.events and grouped.events)
    assert fan_out.events[0]["data"] is data
    assert grouped.events[0]["data"] is data
    assert fan_out.events[0] is not grouped.events[0]
    assert fan_out.events[0]["id"] == grouped.events[0]["id"]
    await hub.publish("orders", an_event("after"))
    await eventually(lambda: elsewhere.data == ["after"])
    assert await world.plain.xlen(world.key("orders")) == 1


async def test_ack_and_nack_of_a_local_event_do_nothing(world: World, hub: AnyHub) -> None:
    nacking = Recorder.nacking()
    await hub.subscribe("orders", nacking, group="g")
    await hub.publish("orders", an_event(1), local_only=True)
    await hub.publish("orders", an_event(2), local_only=True)
    await eventually(lambda: len(nacking.events) == 2)
    assert await world.plain.xlen(world.key("orders")) == 0
    assert nacking.attempts == [1, 1]


async def test_a_local_publish_without_subscribers_opens_no_connection(server_world: RedisWorld) -> None:
    hub = server_world.hub()
    await hub.publish("orders", an_event(), local_only=True)
    assert hub._client._line.link is None


async def test_case_S20_a_lost_reply_means_unknown_and_is_not_repeated(
    server_world: RedisWorld, proxy: Callable[[int], Proxy]
) -> None:
    between = proxy(server_world.server.port)
    url = server_world.server.url().replace(f":{server_world.server.port}/", f":{between.port}/")
    hub = server_world.hub(url, publish_timeout=3.0)
    await hub.publish("orders", an_event("first"))
    between.drop_reply_to(b"XADD")
    with pytest.raises(PublishOutcomeUnknown, match="orders"):
        await hub.publish("orders", an_event("second"))
    assert [json.loads(fields["event"])["data"] for _, fields in await server_world.entries("orders")] == [
        "first",
        "second",
    ]


async def test_publish_without_a_server_ends_by_its_deadline_c22(own_world: RedisWorld) -> None:
    hub = own_world.hub(publish_timeout=0.5)
    own_world.server.kill()
    with anyio.fail_after(3):
        with pytest.raises(PublishError) as failed:
            await hub.publish("orders", an_event())
    assert failed.value.__cause__ is not None


async def test_flush_waits_for_the_publishes_in_flight_c24(world: World, hub: AnyHub) -> None:
    async with anyio.create_task_group() as publishing:
        for number in range(50):
            publishing.start_soon(hub.publish, "orders", an_event(number))
        await anyio.lowlevel.checkpoint()
        await hub.flush()
        assert await world.plain.xlen(world.key("orders")) == 50


async def test_flush_with_nothing_in_flight_returns(hub: AnyHub) -> None:
    await hub.flush()


async def test_publishing_on_a_closed_hub_raises(hub: AnyHub) -> None:
    await hub.close()
    with pytest.raises(HubClosed):
        await hub.publish("orders", an_event())
    with pytest.raises(HubClosed):
        await hub.publish("orders", an_event(), local_only=True)


async def _publish_many(hub: AnyHub, count: int) -> None:
    async with anyio.create_task_group() as publishing:
        for number in range(count):
            publishing.start_soon(hub.publish, "orders", an_event(number))


async def test_a_publish_that_failed_says_whether_it_may_be_repeated(own_world: RedisWorld) -> None:
    hub = own_world.hub(publish_timeout=0.3)
    await hub.publish("orders", an_event(1))
    await own_world.plain.config_set("maxmemory", "1")
    with pytest.raises(PublishError) as full:
        await hub.publish("orders", an_event(2))
    await own_world.plain.config_set("maxmemory", "0")
    own_world.server.kill()
    await eventually(lambda: hub._client._line.link is None)
    with pytest.raises(PublishError) as away:
        await hub.publish("orders", an_event(3))
    assert (full.value.retryable, away.value.retryable) == (False, True)
    assert not PublishOutcomeUnknown("orders", "…").retryable
