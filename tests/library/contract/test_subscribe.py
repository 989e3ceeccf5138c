"""Subscribing: groups, where they begin, and how handlers run (C-12 to C-14, C-18, C-23)."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from streamhold import ConfigError, Event, HubClosed, PermissionRefused, Settle
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event

if TYPE_CHECKING:
    from support.worlds import AnyHub, RedisWorld, World

pytestmark = pytest.mark.anyio


async def test_the_modes_are_those_that_the_backend_declares_c25(world: World, hub: AnyHub) -> None:
    assert hub.supported_modes == world.modes


async def test_members_of_a_group_share_the_events_c12(world: World) -> None:
    ours, theirs = Recorder.slow(0.05), Recorder.slow(0.05)
    await world.hub().subscribe("orders", ours, group="g", max_in_flight=5)
    await world.hub().subscribe("orders", theirs, group="g", max_in_flight=5)
    publisher = world.hub()
    for number in range(40):
        await publisher.publish("orders", an_event(number))
    await eventually(lambda: len(ours.events) + len(theirs.events) >= 40)
    assert sorted(ours.data + theirs.data) == list(range(40))
    assert ours.events
    assert theirs.events


async def test_two_callbacks_of_one_hub_share_a_group_c12(hub: AnyHub) -> None:
    first, second = Recorder(), Recorder()
    await hub.subscribe("orders", first, group="g")
    await hub.subscribe("orders", second, group="g")
    for number in range(20):
        await hub.publish("orders", an_event(number))
    await eventually(lambda: len(first.events) + len(second.events) == 20)
    assert sorted(first.data + second.data) == list(range(20))
    assert first.events
    assert second.events


async def test_the_same_callback_twice_is_one_subscription_c12(world: World, hub: AnyHub) -> None:
    recorder = Recorder()
    async with anyio.create_task_group() as both:
        both.start_soon(hub.subscribe, "orders", recorder, "g")
        both.start_soon(hub.subscribe, "orders", recorder, "another")
    await hub.subscribe("orders", recorder)
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.events)
    await hub.publish("orders", an_event(2))
    await eventually(lambda: len(recorder.events) >= 2)
    assert recorder.data == [1, 2]
    assert list(await world.groups("orders")) == ["g"]


async def test_a_bound_method_is_the_same_callback_each_time(hub: AnyHub) -> None:
    class Shop:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        async def order(self, event: Event, ack: Settle, nack: Settle) -> None:
            self.seen.append(event["data"])
            await ack()

    shop, other = Shop(), Shop()
    await hub.subscribe("orders", shop.order)
    await hub.subscribe("orders", shop.order)
    await hub.subscribe("orders", other.order)
    await hub.publish("orders", an_event(1))
    await hub.publish("orders", an_event(2))
    await eventually(lambda: len(shop.seen) >= 2 and len(other.seen) >= 2)
    assert shop.seen == other.seen == [1, 2]


async def test_case_S16_earliest_sees_the_backlog_and_latest_does_not(world: World) -> None:
    hub = world.hub()
    for number in range(3):
        await hub.publish("orders", an_event(number))
    earliest, latest, fan_out, fan_out_latest = Recorder(), Recorder(), Recorder(), Recorder()
    await hub.subscribe("orders", earliest, group="early", start_from="earliest")
    await hub.subscribe("orders", latest, group="late", start_from="latest")
    await hub.subscribe("orders", fan_out)
    await world.hub().subscribe("orders", fan_out_latest, start_from="latest")
    await eventually(lambda: len(earliest.events) == 3 and len(fan_out.events) == 3)
    await hub.publish("orders", an_event("new"))
    await eventually(lambda: latest.events and fan_out_latest.events)
    assert latest.data == fan_out_latest.data == ["new"]
    await eventually(lambda: earliest.data == fan_out.data == [0, 1, 2, "new"])


async def test_case_S16_an_existing_group_keeps_its_checkpoint_c13(world: World) -> None:
    first = world.hub()
    before = Recorder()
    await first.subscribe("orders", before, group="g")
    await first.publish("orders", an_event("before"))
    await eventually(lambda: before.events)
    await first.close()
    second, after = world.hub(), Recorder()
    await second.publish("orders", an_event("between"))
    await second.subscribe("orders", after, group="g", start_from="latest")
    await second.publish("orders", an_event("after"))
    await eventually(lambda: len(after.events) >= 2)
    assert after.data == ["between", "after"]


async def test_a_plain_function_runs_in_a_worker_thread_c14(world: World, hub: AnyHub) -> None:
    threads: list[int] = []

    def handle(event: Event, ack: Settle, nack: Settle) -> None:
        threads.append(threading.get_ident())
        time.sleep(0.01)
        ack()

    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: threads)
    assert threads[0] != threading.get_ident()
    await eventually(functools.partial(_settled, world, "g"))


async def test_a_plain_function_around_an_async_one_is_awaited_c14(world: World, hub: AnyHub) -> None:
    recorder = Recorder()
    await hub.subscribe("orders", lambda event, ack, nack: recorder(event, ack, nack), group="g")
    await hub.subscribe("orders", functools.partial(recorder.__call__), group="h")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: len(recorder.events) == 2)
    await eventually(functools.partial(_settled, world, "g"))


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_case_S31_a_handler_that_raises_nacks_and_the_next_event_still_arrives_c14(
    world: World, hub: AnyHub, kind: str
) -> None:
    seen: list[tuple[Any, int]] = []

    def plain(event: Event, ack: Settle, nack: Settle) -> None:
        seen.append((event["data"], event["deliveryAttempt"]))
        if event["data"] == 1 and event["deliveryAttempt"] == 1:
            raise ValueError("no")
        ack()

    async def coroutine(event: Event, ack: Settle, nack: Settle) -> None:
        plain(event, ack, nack)

    await hub.subscribe("orders", plain if kind == "plain" else coroutine, group="g")
    await hub.publish("orders", an_event(1))
    await hub.publish("orders", an_event(2))
    await eventually(lambda: sorted(seen) == [(1, 1), (1, 2), (2, 1)])
    await eventually(functools.partial(_settled, world, "g"))


@pytest.mark.parametrize("error", [asyncio.CancelledError, lambda: HubClosed("another hub")])
async def test_what_a_handler_raises_by_itself_counts_as_an_attempt_c14(world: World, error: Any) -> None:
    hub = world.hub(max_delivery_attempts=3)
    attempts: list[int] = []

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        attempts.append(event["deliveryAttempt"])
        raise error()

    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: hub.counters.dropped == 1)
    assert attempts == [1, 2, 3]


async def test_case_S32_handlers_run_side_by_side_up_to_the_limit(hub: AnyHub) -> None:
    running, most, done = 0, 0, 0
    all_there = anyio.Event()

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        if running == 50:
            all_there.set()
        await all_there.wait()  # each waits for all: one after the other, or one less at once, and none would end
        await anyio.sleep(0.1)
        running -= 1
        done += 1
        await ack()

    for number in range(60):
        await hub.publish("orders", an_event(number))
    await hub.subscribe("orders", handle, group="g", max_in_flight=50)
    await eventually(lambda: done == 60)
    assert most == 50


async def test_no_more_handlers_run_than_the_limit_c14(hub: AnyHub) -> None:
    running, most, done = 0, 0, 0

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await anyio.sleep(0.01)
        running -= 1
        done += 1
        await ack()

    await hub.subscribe("orders", handle, group="g", max_in_flight=3)
    for number in range(30):
        await hub.publish("orders", an_event(number))
    await eventually(lambda: done == 30)
    assert most == 3


async def test_a_slow_handler_does_not_hold_up_the_others_c14(hub: AnyHub) -> None:
    release = anyio.Event()
    seen: list[Any] = []

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        if event["data"] == 0:
            await release.wait()
        seen.append(event["data"])
        await ack()

    await hub.subscribe("orders", handle, group="g")
    for number in range(30):
        await hub.publish("orders", an_event(number))
    await eventually(lambda: len(seen) == 29)
    release.set()
    await eventually(lambda: len(seen) == 30)


async def test_a_busy_topic_does_not_wait_for_an_idle_one_of_the_same_group(world: World) -> None:
    hub = world.hub(block_ms=1000)
    recorder = Recorder()
    await hub.subscribe("idle", Recorder(), group="g")
    await hub.subscribe("busy", recorder, group="g", max_in_flight=1)
    for number in range(20):
        await hub.publish("busy", an_event(number))
    began = time.monotonic()
    await eventually(lambda: len(recorder.events) == 20)
    assert time.monotonic() - began < 2


async def test_a_topic_added_later_does_not_wait_for_a_blocked_read(world: World) -> None:
    hub = world.hub(block_ms=1000)
    await hub.subscribe("first", Recorder(), group="g")
    await anyio.sleep(0.1)  # the reader blocks on the first topic by now
    recorder = Recorder()
    await hub.subscribe("second", recorder, group="g")
    await hub.publish("second", an_event(1))
    await eventually(lambda: recorder.events, timeout=0.6)


async def test_case_S33_connections_do_not_grow_with_subscriptions_c27(server_world: RedisWorld) -> None:
    hub = server_world.hub()
    recorder = Recorder()
    for number in range(60):
        await hub.subscribe(f"grouped-{number}", recorder, group="g")
        await hub.subscribe(f"all-{number}", recorder)
    for number in range(60):
        await hub.publish(f"grouped-{number}", an_event(number))
        await hub.publish(f"all-{number}", an_event(number))
    await eventually(lambda: len(recorder.events) == 120)
    own = [client for client in await server_world.plain.client_list() if client["name"].startswith("streamhold-")]
    readers = [client["name"] for client in own if "reader" in client["name"] and "-g-" in client["name"]]
    assert len(readers) <= 2  # other tests of this session may be ending
    assert len(own) < 20


async def test_case_S19_a_long_block_is_no_error_and_hides_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    hub = world.hub(block_ms=6000)
    recorder = Recorder()
    await hub.subscribe("orders", recorder, group="g")
    reader = hub._subscriptions._readers["g"]
    reads: list[object] = []

    def another_read() -> bool:
        if reader._reading and not any(reader._reading is seen for seen in reads):
            reads.append(reader._reading)
            return True
        return False

    for _ in range(3):  # two reads have blocked and found nothing
        await eventually(another_read, interval=0.002)
    took: list[float] = []
    for number in range(6):
        # A read has just begun and would go on for a second: what is published now must end it.
        await eventually(another_read, interval=0.002)
        published_at = time.monotonic()
        await hub.publish("orders", an_event(number))
        await eventually(lambda number=number: len(recorder.events) == number + 1, interval=0.002)  # type: ignore[misc]
        took.append(time.monotonic() - published_at)
    assert min(took) < 0.5  # of several, since the machine may be busy
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_the_same_callback_may_be_on_several_topics_c23(hub: AnyHub) -> None:
    recorder = Recorder()
    await hub.subscribe("a", recorder)
    await hub.subscribe("b", recorder)
    await hub.unsubscribe("a", recorder)
    await hub.publish("a", an_event("a"))
    await hub.publish("b", an_event("b"))
    await eventually(lambda: recorder.events)
    assert recorder.data == ["b"]


async def test_unsubscribing_destroys_the_private_group_c23(world: World, hub: AnyHub) -> None:
    first, second = Recorder(), Recorder()
    await hub.subscribe("orders", first)
    await hub.subscribe("orders", second)
    [private] = await world.groups("orders")
    assert private.startswith("__fanout-")
    await hub.unsubscribe("orders", first)
    assert list(await world.groups("orders")) == [private]
    await hub.unsubscribe("orders", second)
    assert await world.groups("orders") == {}


async def test_unsubscribing_what_was_never_subscribed_is_a_no_op_c23(hub: AnyHub) -> None:
    await hub.unsubscribe("orders", Recorder())


async def test_unsubscribing_during_a_subscribe_tears_it_down_c23(world: World, hub: AnyHub) -> None:
    recorder = Recorder()
    async with anyio.create_task_group() as racing:
        racing.start_soon(hub.subscribe, "orders", recorder)
        await anyio.lowlevel.checkpoint()
        racing.start_soon(hub.unsubscribe, "orders", recorder)
    assert await world.groups("orders") == {}
    await hub.subscribe("orders", recorder)
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.data == [1])


async def test_unsubscribing_hands_back_what_waits_and_lets_the_running_handler_finish(world: World) -> None:
    hub, release = world.hub(), anyio.Event()
    finished: list[Any] = []

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        await release.wait()
        finished.append(event["data"])
        await ack()

    await hub.subscribe("orders", handle, group="g", max_in_flight=1)
    for number in range(3):
        await hub.publish("orders", an_event(number))
    await eventually(functools.partial(_pending_is, world, 1))
    await hub.unsubscribe("orders", handle)
    other = Recorder()
    await world.hub().subscribe("orders", other, group="g")
    await eventually(lambda: sorted(other.data) == [1, 2])
    release.set()
    await eventually(lambda: finished == [0])
    await eventually(functools.partial(_settled, world, "g"))
    assert other.attempts == [1, 1]


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("callback", "no callback"),
        ("group", ""),
        ("group", 7),
        ("group", "__fanout-x"),
        ("start_from", "now"),
        ("max_in_flight", 0),
        ("max_in_flight", True),
        ("batch", {"maxSize": 3}),
    ],
)
async def test_a_wrong_argument_is_refused_by_name(hub: AnyHub, option: str, wrong: Any) -> None:
    arguments: dict[str, Any] = {"callback": Recorder(), option: wrong}
    with pytest.raises(ConfigError) as refused:
        await hub.subscribe("orders", **arguments)
    assert refused.value.option == option


async def test_a_subscribe_that_fails_can_be_repeated(server_world: RedisWorld) -> None:
    name = f"user-{server_world.prefix}".replace(":", "-")
    await server_world.plain.acl_setuser(
        name, enabled=True, passwords=["+secret"], keys=[f"{server_world.prefix}:*"], commands=["+@all", "-xgroup"]
    )
    try:
        url = f"redis://{name}:secret@{server_world.server.host}:{server_world.server.port}/0"
        hub, recorder = server_world.hub(url), Recorder()
        with pytest.raises(PermissionRefused):
            await hub.subscribe("orders", recorder, group="g")
        await server_world.plain.acl_setuser(name, enabled=True, commands=["+xgroup"])
        await hub.subscribe("orders", recorder, group="g")
        await hub.publish("orders", an_event(1))
        await eventually(lambda: recorder.data == [1])
        await hub.close()
    finally:
        await server_world.plain.acl_deluser(name)


async def test_subscribing_on_a_closed_hub_raises(hub: AnyHub) -> None:
    await hub.close()
    with pytest.raises(HubClosed):
        await hub.subscribe("orders", Recorder())


async def _settled(world: World, group: str) -> bool:
    return await world.pending("orders", group) == 0


async def _pending_is(world: World, count: int) -> bool:
    return await world.pending("orders", "g") == count


async def test_without_the_right_to_unblock_reads_end_by_themselves(server_world: RedisWorld) -> None:
    name = f"reader-{server_world.prefix}".replace(":", "-")
    await server_world.plain.acl_setuser(
        name,
        enabled=True,
        passwords=["+secret"],
        keys=[f"{server_world.prefix}:*"],
        commands=["+@all", "-client", "+client|setname"],
    )
    try:
        hub = server_world.hub(
            f"redis://{name}:secret@{server_world.server.host}:{server_world.server.port}/0", block_ms=1000
        )
        busy, later = Recorder(), Recorder()
        await hub.subscribe("idle", Recorder(), group="g")
        await hub.subscribe("busy", busy, group="g", max_in_flight=1)
        for number in range(10):
            await hub.publish("busy", an_event(number))
        await eventually(lambda: len(busy.events) == 10, timeout=3)
        await hub.subscribe("later", later, group="g")
        await hub.publish("later", an_event(1))
        await eventually(lambda: later.events, timeout=2)
        with anyio.fail_after(3):
            await hub.close()
    finally:
        await server_world.plain.acl_deluser(name)


async def test_a_handler_that_cancels_its_own_task_ends_at_the_cap_c17(world: World) -> None:
    hub = world.hub(max_delivery_attempts=3)
    attempts: list[int] = []

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        attempts.append(event["deliveryAttempt"])
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep(10)

    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: hub.counters.dropped == 1)
    assert attempts == [1, 2, 3]


async def test_cancelled_calls_of_subscribe_and_unsubscribe_leave_nothing_behind_c23(world: World) -> None:
    hub = world.hub()
    recorders = [Recorder() for _ in range(8)]
    random = Random(3)

    async def come_and_go() -> None:
        for _ in range(12):
            topic, recorder = random.choice("ab"), random.choice(recorders)
            group = random.choice([None, "g"])
            with anyio.move_on_after(random.random() * 0.02):
                if random.random() < 0.5:
                    await hub.subscribe(topic, recorder, group=group)
                else:
                    await hub.unsubscribe(topic, recorder)

    async with anyio.create_task_group() as storm:
        for _ in range(10):
            storm.start_soon(come_and_go)
    for topic in "ab":
        for recorder in recorders:
            await hub.unsubscribe(topic, recorder)

    async def nothing_left() -> bool:
        groups = [group for topic in "ab" for group in (await world.groups(topic)).values()]
        return all(group["name"] == "g" and group["consumers"] == 0 for group in groups)

    await eventually(nothing_left)
    assert not hub._subscriptions._readers
