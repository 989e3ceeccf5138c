"""Recovering: lost groups, lost connections, a server that went away (C-11, C-21, C-22, C-24)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from streamhold import PublishError
from streamhold._backends.base import Delivery, QueueSubscriber
from streamhold._backends.redis.read import _count
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event

if TYPE_CHECKING:
    from streamhold_dev.proxy import Proxy
    from support.worlds import AnyHub, RedisWorld, World

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("start_from", ["earliest", "latest"])
async def test_a_deleted_stream_under_a_blocked_read_loses_nothing_published_after_c21(
    world: World, start_from: Any
) -> None:
    hub, publisher = world.hub(block_ms=1000), world.hub()
    grouped, fan_out = Recorder(), Recorder()
    await hub.subscribe("orders", grouped, group="g", start_from=start_from)
    await hub.subscribe("orders", fan_out, start_from=start_from)
    await publisher.publish("orders", an_event("before"))
    await eventually(lambda: grouped.events and fan_out.events)
    await world.plain.delete(world.key("orders"))
    for number in range(5):
        await publisher.publish("orders", an_event(number))
    await eventually(lambda: grouped.data == fan_out.data == ["before", 0, 1, 2, 3, 4], timeout=3)


async def test_a_latest_subscriber_that_saw_nothing_loses_nothing_c21(world: World) -> None:
    hub, publisher = world.hub(), world.hub()
    await publisher.publish("orders", an_event("old"))
    recorder = Recorder()
    await hub.subscribe("orders", recorder, group="g", start_from="latest")
    await world.plain.delete(world.key("orders"))
    await publisher.publish("orders", an_event("in the gap"))
    await eventually(lambda: recorder.data == ["in the gap"])


async def test_a_destroyed_group_goes_on_after_the_last_entry_seen_c21(world: World, hub: AnyHub) -> None:
    recorder = Recorder()
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.events)
    await world.plain.xgroup_destroy(world.key("orders"), "g")
    await hub.publish("orders", an_event(2))
    await eventually(lambda: recorder.data == [1, 2])


async def test_a_new_stream_with_smaller_ids_is_read_from_its_beginning_c21(server_world: RedisWorld) -> None:
    hub = server_world.hub()
    recorder = Recorder()
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event("before"))
    await eventually(lambda: recorder.events)
    async with server_world.plain.pipeline(transaction=True) as both:
        both.delete(server_world.key("orders"))
        both.xadd(server_world.key("orders"), {"event": json.dumps(an_event("clock went back"))}, id="5-1")
        await both.execute()
    await eventually(lambda: recorder.data == ["before", "clock went back"])


async def test_case_S01_an_emptied_server_is_recovered_with_few_commands(own_world: RedisWorld) -> None:
    hub, recorder = own_world.hub(block_ms=1000), Recorder()
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.events)
    before = await _commands(own_world)
    await own_world.plain.flushall()
    await eventually(lambda: _has_group(own_world), timeout=2)
    began = time.monotonic()
    await hub.publish("orders", an_event(2))
    await eventually(lambda: recorder.data == [1, 2])
    assert time.monotonic() - began < 2
    assert await _commands(own_world) - before < 20 + 15  # and what this test asked itself


async def _commands(world: World) -> int:
    """Commands from outside scripts, without those of this test's own client."""
    stats = await world.plain.info("commandstats")
    ours = ("cmdstat_xreadgroup", "cmdstat_evalsha", "cmdstat_eval", "cmdstat_xack", "cmdstat_xadd", "cmdstat_xpending")
    return sum(stats[name]["calls"] for name in ours if name in stats)


async def _has_group(world: World) -> bool:
    return "g" in await world.groups("orders")


async def test_case_S01_a_server_that_restarts_empty_is_recovered(own_redis: Any, own_world: RedisWorld) -> None:
    server = own_redis()  # without persistence
    hub = own_world.hub(server.url())
    grouped, fan_out = Recorder(), Recorder()
    await hub.subscribe("orders", grouped, group="g")
    await hub.subscribe("orders", fan_out)
    await hub.publish("orders", an_event(1))
    await eventually(lambda: grouped.events and fan_out.events)
    await anyio.to_thread.run_sync(server.kill)
    await anyio.to_thread.run_sync(server.start)
    began = time.monotonic()
    await hub.publish("orders", an_event(2))
    await eventually(lambda: grouped.data == fan_out.data == [1, 2])
    assert time.monotonic() - began < 3


async def test_case_S02_a_lasting_refusal_is_retried_slowly_and_recovers(own_world: RedisWorld) -> None:
    hub, recorder = own_world.hub(), Recorder()
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.events)
    await own_world.plain.acl_setuser("default", enabled=True, commands=["-xreadgroup"])
    await own_world.plain.config_resetstat()
    await anyio.sleep(5)
    stats = await own_world.plain.info("commandstats")
    refused = stats.get("cmdstat_xreadgroup", {})
    assert refused.get("calls", 0) + refused.get("rejected_calls", 0) < 20
    await own_world.plain.acl_setuser("default", enabled=True, commands=["+xreadgroup"])
    await hub.publish("orders", an_event(2))
    await eventually(lambda: recorder.data == [1, 2], timeout=4)


async def test_one_bad_topic_does_not_stop_the_others_of_its_group(world: World, hub: AnyHub) -> None:
    good, bad = Recorder(), Recorder()
    await hub.subscribe("bad", bad, group="g")
    await hub.subscribe("good", good, group="g")
    await world.plain.delete(world.key("bad"))
    await world.plain.set(world.key("bad"), "another type")
    for number in range(5):
        await hub.publish("good", an_event(number))
        await anyio.sleep(0.1)
    await eventually(lambda: good.data == [0, 1, 2, 3, 4])
    await world.plain.delete(world.key("bad"))
    await hub.publish("bad", an_event("again"))
    await eventually(lambda: bad.data == ["again"])


async def test_an_expired_topic_stays_away_until_somebody_writes_c11(world: World) -> None:
    hub, recorder = world.hub(stream_idle_ttl_ms=300), Recorder()
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.events)
    await eventually(lambda: _is_gone(world))
    for _ in range(10):
        await anyio.sleep(0.1)
        assert not await world.plain.exists(world.key("orders"))
    await hub.publish("orders", an_event("here"))
    await eventually(lambda: recorder.data == [1, "here"], timeout=0.9)
    await eventually(lambda: _is_gone(world))
    other = world.hub(stream_idle_ttl_ms=60_000)
    await other.publish("orders", an_event("elsewhere"))
    await eventually(lambda: recorder.data == [1, "here", "elsewhere"], timeout=3)


async def _is_gone(world: World) -> bool:
    return not await world.plain.exists(world.key("orders"))


async def test_clearing_a_topic_leaves_its_subscribers_attached_c24(world: World, hub: AnyHub) -> None:
    grouped, fan_out = Recorder(), Recorder()
    await hub.subscribe("orders", grouped, group="g")
    await hub.subscribe("orders", fan_out)
    await hub.publish("orders", an_event(1))
    await eventually(lambda: grouped.events and fan_out.events)
    await hub.clear_topic("orders")
    await hub.publish("orders", an_event(2))
    await eventually(lambda: grouped.data == fan_out.data == [1, 2])
    assert len(await world.entries("orders")) == 1


async def test_clearing_a_topic_never_raises_c24(own_world: RedisWorld, hub: AnyHub) -> None:
    await hub.clear_topic("unknown")
    await hub.close()
    await hub.clear_topic("orders")
    other = own_world.hub()
    await own_world.plain.acl_setuser("default", enabled=True, commands=["-del"])
    await other.clear_topic("orders")


async def test_a_cut_connection_loses_no_entry_c22(server_world: RedisWorld, proxy: Callable[[int], Proxy]) -> None:
    between = proxy(server_world.server.port)
    hub = server_world.hub(_through(server_world, between), reclaim_interval_ms=0)
    grouped, fan_out = Recorder(), Recorder()
    await hub.subscribe("orders", grouped, group="g")
    await hub.subscribe("orders", fan_out)
    publisher = server_world.hub()
    for number in range(60):
        await publisher.publish("orders", an_event(number))
        if number % 10 == 5:
            between.cut()
        await anyio.sleep(0.01)
    await eventually(lambda: len(set(grouped.data)) == 60 and len(set(fan_out.data)) == 60)
    assert fan_out.data == list(range(60))
    await eventually(lambda: _settled(server_world))


async def test_entries_of_a_read_whose_reply_was_lost_come_at_once_c18(
    server_world: RedisWorld, proxy: Callable[[int], Proxy]
) -> None:
    between = proxy(server_world.server.port)
    hub = server_world.hub(_through(server_world, between), reclaim_interval_ms=0, block_ms=500)
    grouped, fan_out = Recorder(), Recorder()
    await hub.subscribe("orders", grouped, group="g")
    await hub.subscribe("orders", fan_out)
    await anyio.sleep(0.1)  # both block now
    between.swallow_replies()
    await server_world.hub().publish("orders", an_event("lost on the way"))
    await eventually(lambda: _pending(server_world))
    between.cut()
    between.pass_through()
    await eventually(lambda: grouped.data == fan_out.data == ["lost on the way"], timeout=12)
    await eventually(lambda: _settled(server_world))


async def test_case_S04_a_killed_server_loses_no_confirmed_publish(own_world: RedisWorld) -> None:
    hub = own_world.hub(publish_timeout=8.0)
    await hub.publish("orders", an_event("first"))
    await own_world.plain.config_set("appendfsync", "always")
    confirmed: list[int] = []

    async def publish(number: int) -> None:
        try:
            await hub.publish("orders", an_event(number))
        except PublishError:
            return
        confirmed.append(number)

    with anyio.fail_after(15):
        async with anyio.create_task_group() as publishing:
            for number in range(100):
                publishing.start_soon(publish, number)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            await anyio.to_thread.run_sync(own_world.server.kill)
            await anyio.sleep(1)
            await anyio.to_thread.run_sync(own_world.server.start)
    stored = [json.loads(fields["event"])["data"] for _, fields in await own_world.entries("orders")]
    for number in confirmed:
        assert stored.count(number) == 1


async def test_consuming_goes_on_after_a_restart_without_repeating_what_was_acknowledged_c22(
    own_world: RedisWorld,
) -> None:
    await own_world.plain.config_set("appendfsync", "always")
    hub, recorder = own_world.hub(), Recorder()
    await hub.subscribe("orders", recorder, group="g")
    for number in range(10):
        await hub.publish("orders", an_event(number))
    await eventually(lambda: len(recorder.events) == 10)
    await eventually(lambda: _settled(own_world))
    await anyio.to_thread.run_sync(own_world.server.restart)
    for number in range(10, 20):
        await hub.publish("orders", an_event(number))
    await eventually(lambda: recorder.data == list(range(20)))


def _through(world: World, between: Proxy) -> str:
    return world.server.url().replace(f":{world.server.port}/", f":{between.port}/")


async def _settled(world: World) -> bool:
    return await world.pending("orders", "g") == 0


async def _pending(world: World) -> bool:
    return await world.pending("orders", "g") == 1


async def test_a_fault_while_delivering_does_not_end_the_reader(world: World, hub: AnyHub) -> None:
    class Faulty(QueueSubscriber):
        faults = 1

        def deliver(self, delivery: Delivery) -> None:
            if self.faults:
                self.faults -= 1
                raise RuntimeError("a fault of the library")
            super().deliver(delivery)

    queue = Faulty(10, until_settled=True)
    await hub.open_subscription("orders", queue, "g", "earliest")
    for number in range(3):
        await hub.publish("orders", an_event(number))
    seen: list[Any] = []
    with anyio.fail_after(5):
        while len(seen) < 3:
            delivery = await queue.next()
            assert delivery is not None
            seen.append(delivery.event["data"])
            await delivery.ack()
    assert sorted(seen) == [0, 1, 2]
    assert await world.pending("orders", "g") == 0


async def test_reads_ask_for_fewer_of_large_entries(own_world: RedisWorld) -> None:
    hub = own_world.hub()
    recorder = Recorder()
    await hub.subscribe("orders", recorder, group="g")
    for number in range(4):
        await hub.publish("orders", an_event("x" * (9 << 20)))
        await eventually(lambda number=number: len(recorder.events) == number + 1)  # type: ignore[misc]
    (attachment,) = hub._subscriptions._readers["g"].attachments.values()
    assert _count(attachment) == 1
    for number in range(40):
        await hub.publish("orders", an_event(number))
    await eventually(lambda: len(recorder.events) == 44)
    await eventually(lambda: _count(attachment) > 100)
