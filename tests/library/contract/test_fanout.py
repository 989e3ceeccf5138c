"""Subscribers without a group: everyone sees everything, and nothing piles up (C-12, C-16, C-26)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from streamhold.keys import companion
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event

if TYPE_CHECKING:
    from support.worlds import AnyHub, World

pytestmark = pytest.mark.anyio


async def test_every_subscriber_of_every_hub_sees_every_event_c12(world: World) -> None:
    hubs = [world.hub(), world.hub()]
    recorders = [Recorder() for _ in range(4)]
    for number, recorder in enumerate(recorders):
        await hubs[number % 2].subscribe("orders", recorder)
    for number in range(20):
        await hubs[0].publish("orders", an_event(number))
    await eventually(lambda: all(recorder.data == list(range(20)) for recorder in recorders))
    assert len(await world.groups("orders")) == 2  # one for each process
    assert all(name.startswith("__fanout-") for name in await world.groups("orders"))


async def test_each_subscriber_has_an_event_of_its_own(hub: AnyHub) -> None:
    first, second = Recorder(), Recorder()
    await hub.subscribe("orders", first)
    await hub.subscribe("orders", second)
    await hub.publish("orders", an_event({"n": 1}))
    await eventually(lambda: first.events and second.events)
    assert first.events[0] == second.events[0]
    assert first.events[0]["data"] is not second.events[0]["data"]


async def test_a_nack_redelivers_to_that_callback_alone_c12(world: World, hub: AnyHub) -> None:
    acking, elsewhere = Recorder(), Recorder()
    nacking = Recorder(lambda event, ack, nack: ack() if event["deliveryAttempt"] == 3 else nack())
    await hub.subscribe("orders", acking)
    await hub.subscribe("orders", nacking)
    await world.hub().subscribe("orders", elsewhere)
    await hub.publish("orders", an_event(1))
    await eventually(lambda: nacking.attempts == [1, 2, 3])
    await hub.publish("orders", an_event(2))
    await eventually(lambda: acking.data == [1, 2] and elsewhere.data == [1, 2])
    assert len(await world.entries("orders")) == 2


async def test_at_the_cap_a_subscriber_gets_it_no_more_c17(world: World) -> None:
    hub = world.hub(max_delivery_attempts=3, dead_letters=True)
    nacking = Recorder.nacking()
    await hub.subscribe("orders", nacking)
    await hub.publish("orders", an_event(1))
    await eventually(lambda: hub.counters.dead_lettered == 1)
    assert nacking.attempts == [1, 2, 3]
    dead = companion(world.prefix, "dead", world.key("orders"))
    await eventually(lambda: world.plain.exists(dead))
    [(_, letter)] = await world.plain.xrange(dead)
    assert letter["attempts"] == "3"


async def test_case_S10_a_subscriber_that_never_acks_leaves_nothing_pending_c26(world: World) -> None:
    hub, silent = world.hub(max_stream_length=0), Recorder.silent()
    await hub.subscribe("orders", silent)
    for _ in range(20):
        async with anyio.create_task_group() as publishing:
            for number in range(500):
                publishing.start_soon(hub.publish, "orders", an_event(number))
        [private] = (await world.groups("orders")).values()
        assert private["pending"] <= 2_000
    await eventually(lambda: len(silent.events) == 10_000, timeout=20)
    await eventually(lambda: _nothing_pending(world))


async def test_a_later_earliest_subscriber_gets_the_past_and_the_present_once_each_in_order_c12(
    hub: AnyHub,
) -> None:
    first, second = Recorder(), Recorder()
    await hub.subscribe("orders", first)

    async def publish() -> None:
        for number in range(1200):
            await hub.publish("orders", an_event(number))

    async with anyio.create_task_group() as publishing:
        publishing.start_soon(publish)
        await eventually(lambda: len(first.events) > 600)
        await hub.subscribe("orders", second)
    await eventually(lambda: len(first.events) == 1200 and len(second.events) == 1200)
    assert second.data == list(range(1200))


async def test_a_later_latest_subscriber_gets_no_past_c12(hub: AnyHub) -> None:
    first, second = Recorder(), Recorder()
    await hub.subscribe("orders", first)
    for number in range(5):
        await hub.publish("orders", an_event(number))
    await hub.subscribe("orders", second, start_from="latest")
    await hub.publish("orders", an_event("new"))
    await eventually(lambda: second.events and len(first.events) == 6)
    assert second.data == ["new"]


async def test_the_past_that_a_retry_of_a_group_left_is_not_replayed(hub: AnyHub) -> None:
    nacking = Recorder(lambda event, ack, nack: ack() if event["deliveryAttempt"] == 3 else nack())
    first, second = Recorder(), Recorder()
    await hub.subscribe("orders", nacking, group="g")
    await hub.subscribe("orders", first)
    await hub.publish("orders", an_event(1))
    await eventually(lambda: nacking.attempts == [1, 2, 3])
    await hub.publish("orders", an_event(2))
    await eventually(lambda: first.data == [1, 2])
    await hub.subscribe("orders", second)
    assert await eventually(lambda: second.data == [1, 2])


async def test_iterating_without_a_group_needs_no_ack(hub: AnyHub) -> None:
    seen: list[Any] = []
    for number in range(200):
        await hub.publish("orders", an_event(number))
    async with hub.messages("orders", max_in_flight=10) as messages:
        with anyio.fail_after(10):
            async for message in messages:
                seen.append(message.event["data"])
                if len(seen) == 200:
                    break
    assert seen == list(range(200))


async def _nothing_pending(world: World) -> bool:
    return all(group["pending"] == 0 for group in (await world.groups("orders")).values())


async def test_an_event_that_fails_without_a_cap_comes_again_less_and_less_often(world: World) -> None:
    hub = world.hub(max_delivery_attempts=0, close_timeout=20.0)
    recorder = Recorder.nacking()
    await hub.subscribe("orders", recorder)
    await hub.publish("orders", an_event(1))
    await eventually(lambda: len(recorder.events) > 5)
    await anyio.sleep(0.5)
    assert len(recorder.events) < 20
    before = len(recorder.events)
    await eventually(lambda: len(recorder.events) > before)
    with anyio.fail_after(10):  # and the end does not wait for it to succeed
        await hub.close()
