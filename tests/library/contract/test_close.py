"""The end of a hub: nothing is lost, nothing is left behind, and it does end (C-24)."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from streamhold import Event, HubClosed, PublishError, Settle
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event

if TYPE_CHECKING:
    from support.worlds import AnyHub, RedisWorld, World

pytestmark = pytest.mark.anyio


async def test_closing_twice_and_at_once_is_one_close_c24(hub: AnyHub) -> None:
    await hub.publish("orders", an_event())
    async with anyio.create_task_group() as closing:
        closing.start_soon(hub.close)
        closing.start_soon(hub.close)
    await hub.close()
    assert hub.closed


async def test_a_hub_that_was_never_used_closes_without_a_connection(server_world: RedisWorld) -> None:
    hub = server_world.hub()
    await hub.close()
    assert hub._client._line.link is None


async def test_every_call_on_a_closed_hub_raises_c24(hub: AnyHub) -> None:
    await hub.close()
    for call in (
        lambda: hub.publish("orders", an_event()),
        lambda: hub.subscribe("orders", Recorder()),
        lambda: hub.acquire_lease("k", "me", 1000),
        lambda: hub.get_lease_owner("k"),
        lambda: hub.release_lease("k", "me"),
        lambda: hub.renew_lease("k", "me", 1000),
        lambda: hub.transfer_lease("k", "me", "you", 1000),
        hub.__aenter__,
    ):
        with pytest.raises(HubClosed):
            await call()
    with pytest.raises(HubClosed):
        hub.messages("orders")


async def test_close_leaves_no_connection_and_no_private_group_c24(server_world: RedisWorld) -> None:
    hub = server_world.hub()
    await hub.subscribe("orders", Recorder())
    await hub.subscribe("orders", Recorder(), group="g")
    link = hub._client._line.link
    assert link is not None
    await hub.close()
    assert list(await server_world.groups("orders")) == ["g"]
    assert (await server_world.groups("orders"))["g"]["consumers"] == 0
    assert hub._client._line.link is None


async def test_case_S13_fifty_starts_and_stops_leave_no_consumers(world: World) -> None:
    publisher = world.hub()
    recorder = Recorder()
    for number in range(50):
        await publisher.publish("orders", an_event(number))
        hub = world.hub()
        await hub.subscribe("orders", recorder, group="g")
        await eventually(lambda number=number: len(recorder.events) == number + 1)  # type: ignore[misc]
        await hub.close()
    assert (await world.groups("orders"))["g"]["consumers"] <= 1


async def test_close_waits_for_running_handlers_c24(world: World) -> None:
    hub, recorder = world.hub(close_timeout=5.0), Recorder.slow(0.5)
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.events)
    await hub.close()
    assert await world.pending("orders", "g") == 0
    assert len(await world.entries("orders")) == 1


async def test_case_S30_close_ends_by_its_deadline_and_a_sibling_gets_the_rest_at_once(world: World) -> None:
    hub = world.hub(close_timeout=0.5)
    publisher = world.hub()
    for number in range(100):
        await publisher.publish("orders", an_event(number))
    cancelled: list[Any] = []

    async def work(messages: Any) -> None:
        async for message in messages:
            async with message.process():
                try:
                    await anyio.sleep(3600)
                except BaseException:
                    cancelled.append(message.event["data"])
                    raise

    async with anyio.create_task_group() as working:
        messages = hub.messages("orders", group="g", max_in_flight=100)
        await messages.__aenter__()
        for _ in range(20):
            working.start_soon(work, messages)
        await eventually(lambda: _is_pending(world, 100))
        began = time.monotonic()
        await hub.close()
        assert time.monotonic() - began < 2.5
        sibling, recorder = world.hub(), Recorder()
        closed_at = time.monotonic()
        await sibling.subscribe("orders", recorder, group="g")
        await eventually(lambda: len(recorder.events) == 100)
        assert time.monotonic() - closed_at < 1
        working.cancel_scope.cancel()
    assert sorted(recorder.data) == list(range(100))
    assert set(recorder.attempts) == {1}


async def test_handlers_that_do_not_finish_are_cancelled_and_their_events_handed_back_c24(world: World) -> None:
    hub = world.hub(close_timeout=0.2)
    cancelled = anyio.Event()

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        try:
            await anyio.sleep(3600)
        finally:
            cancelled.set()

    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: _is_pending(world, 1))
    await hub.close()
    assert cancelled.is_set()
    recorder = Recorder()
    await world.hub().subscribe("orders", recorder, group="g")
    await eventually(lambda: recorder.attempts == [1])


async def test_a_thread_that_does_not_end_does_not_keep_close_from_ending_c24(world: World) -> None:
    hub = world.hub(close_timeout=0.2)
    release, late = threading.Event(), threading.Event()

    def handle(event: Event, ack: Settle, nack: Settle) -> None:
        release.wait(20)
        try:
            ack()
        except HubClosed:
            late.set()
        else:
            late.set()

    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: _is_pending(world, 1))
    try:
        with anyio.fail_after(3):
            await hub.close()
        recorder = Recorder()
        await world.hub().subscribe("orders", recorder, group="g")
        await eventually(lambda: recorder.attempts == [1])
    finally:
        release.set()
    await eventually(late.is_set)  # its late ack is a no-op
    assert len(recorder.events) == 1


async def test_a_handler_that_publishes_on_a_closing_hub_gives_its_event_back_without_an_attempt(
    world: World,
) -> None:
    hub = world.hub(close_timeout=5)

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        await anyio.sleep(0.3)
        await hub.publish("receipts", an_event())

    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: _is_pending(world, 1))
    await hub.close()
    recorder = Recorder()
    await world.hub().subscribe("orders", recorder, group="g")
    await eventually(lambda: recorder.attempts == [1])


async def test_a_handler_may_close_its_own_hub(world: World) -> None:
    hub = world.hub(close_timeout=5)
    closed = anyio.Event()

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        await ack()
        await hub.close()
        closed.set()

    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event(1))
    with anyio.fail_after(3):
        await closed.wait()
    assert await world.pending("orders", "g") == 0


async def test_close_drains_accepted_publishes_c24(world: World) -> None:
    hub = world.hub()
    await hub.publish("orders", an_event("first"))
    async with anyio.create_task_group() as publishing:
        for number in range(100):
            publishing.start_soon(hub.publish, "orders", an_event(number))
        await anyio.lowlevel.checkpoint()
        await hub.close()
    assert len(await world.entries("orders")) == 101


async def test_close_ends_while_the_server_is_down_c24(own_world: RedisWorld) -> None:
    hub = own_world.hub(close_timeout=1.0)
    silent = Recorder.silent()
    await hub.subscribe("orders", silent, group="g")
    await hub.subscribe("orders", Recorder())
    await hub.publish("orders", an_event(1))
    await eventually(lambda: silent.events)
    await anyio.to_thread.run_sync(own_world.server.kill)
    with anyio.fail_after(12):
        await hub.close()


async def test_close_ends_while_the_server_is_frozen_c24(own_world: RedisWorld) -> None:
    hub = own_world.hub(close_timeout=1.0)
    await hub.subscribe("orders", Recorder(), group="g")
    await hub.publish("orders", an_event(1))
    own_world.server.pause()
    try:
        with anyio.fail_after(12):
            await hub.close()
    finally:
        own_world.server.resume()


async def test_a_cancelled_consumer_still_hands_back_what_it_had(world: World) -> None:
    publisher = world.hub()
    for number in range(10):
        await publisher.publish("orders", an_event(number))

    async def consume() -> None:
        async with world.hub(close_timeout=0.5) as hub, hub.messages("orders", group="g") as messages:
            async for message in messages:
                async with message.process():
                    await anyio.sleep(3600)

    async with anyio.create_task_group() as consuming:
        consuming.start_soon(consume)
        await eventually(lambda: _is_pending(world, 10))
        consuming.cancel_scope.cancel()
    recorder = Recorder()
    await world.hub().subscribe("orders", recorder, group="g")
    await eventually(lambda: sorted(recorder.data) == list(range(10)), timeout=2)
    assert set(recorder.attempts) == {1}


@pytest.mark.parametrize("seed", range(3))
async def test_case_S17_closing_at_a_random_moment_loses_no_event(world: World, seed: int) -> None:
    draw = random.Random(seed)
    published: list[int] = []
    handled: set[int] = set()

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        await anyio.sleep(draw.random() * 0.02)
        handled.add(event["data"])
        await ack()

    async def produce() -> None:
        for number in range(300):
            await publisher.publish("orders", an_event(number))
            published.append(number)
            await anyio.sleep(0.001)

    publisher = world.hub()
    async with anyio.create_task_group() as producing:
        producing.start_soon(produce)
        while len(published) < 300:
            hub = world.hub(close_timeout=0.01)
            await hub.subscribe("orders", handle, group="g", max_in_flight=20)
            await anyio.sleep(draw.random() * 0.15)
            await hub.close()
    sibling = world.hub(reclaim_interval_ms=100, reclaim_idle_ms=300)
    await sibling.subscribe("orders", handle, group="g")
    await eventually(lambda: handled == set(published))


async def test_a_publish_under_way_when_its_hub_closes_is_told_what_became_of_it(own_world: RedisWorld) -> None:
    hub = own_world.hub(close_timeout=0.3, publish_timeout=5.0)
    await hub.publish("orders", an_event("first"))
    own_world.server.pause()
    outcomes: list[str] = []

    async def publish() -> None:
        try:
            await hub.publish("orders", an_event("second"))
        except (PublishError, HubClosed) as error:
            outcomes.append(type(error).__name__)
        else:
            outcomes.append("published")

    try:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as publishing:
                publishing.start_soon(publish)
                await anyio.sleep(0.05)
                await hub.close()
    finally:
        own_world.server.resume()
    stored = [json.loads(fields["event"])["data"] for _, fields in await own_world.entries("orders")]
    assert outcomes == ["PublishOutcomeUnknown"]
    assert stored[0] == "first"


async def _is_pending(world: World, count: int) -> bool:
    return "g" in await world.groups("orders") and await world.pending("orders", "g") == count


async def test_several_handlers_that_close_the_hub_do_not_wait_for_each_other_c24(world: World) -> None:
    hub = world.hub(close_timeout=20.0)
    inside, ended = 0, 0

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        nonlocal inside, ended
        inside += 1
        await eventually(lambda: inside == 3)
        await ack()
        await hub.close()
        ended += 1

    await hub.subscribe("orders", handle, group="g")
    for number in range(3):
        await hub.publish("orders", an_event(number))
    await eventually(lambda: ended == 3, timeout=10)
    await hub.close()
    assert await world.pending("orders", "g") == 0
