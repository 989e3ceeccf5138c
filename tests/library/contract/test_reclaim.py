"""Taking over what dead consumers left, and keeping what is worked on (C-18 to C-20)."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from streamhold import Event, Settle
from streamhold.keys import companion
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event

if TYPE_CHECKING:
    from support.worlds import RedisWorld, World

pytestmark = pytest.mark.anyio


async def test_an_entry_of_a_crashed_consumer_is_delivered_to_its_sibling_c18(world: World) -> None:
    crashing, silent = world.hub(), Recorder.silent()
    await crashing.subscribe("orders", silent, group="g")
    for number in range(3):
        await crashing.publish("orders", an_event(number))
    await eventually(lambda: len(silent.events) == 3)
    await world.crash(crashing)
    sibling, recorder = world.hub(reclaim_interval_ms=100, reclaim_idle_ms=200), Recorder()
    await sibling.subscribe("orders", recorder, group="g")
    await eventually(lambda: len(recorder.events) == 3, timeout=3)
    assert recorder.data == [0, 1, 2]
    assert recorder.attempts == [2, 2, 2]
    await eventually(lambda: _is(world, "g", 0))
    assert sibling.counters.reclaimed == 3


async def test_with_an_interval_of_0_nothing_is_reclaimed_c18(world: World) -> None:
    await world.plain.xadd(world.key("orders"), {"event": "{}"})
    await _leave_pending(world, deliveries=1)
    hub, recorder = world.hub(reclaim_interval_ms=0, reclaim_idle_ms=1), Recorder()
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event("new"))
    await eventually(lambda: recorder.events)
    assert recorder.data == ["new"]


@pytest.mark.parametrize("consumers", [1, 2])
async def test_case_S06_a_handler_of_three_idle_times_is_called_once_c18(world: World, consumers: int) -> None:
    hubs = [world.hub(reclaim_interval_ms=50, reclaim_idle_ms=300) for _ in range(consumers)]
    recorder = Recorder.slow(1.0)
    for hub in hubs:
        await hub.subscribe("orders", recorder, group="g")
    await hubs[0].publish("orders", an_event(1))
    await eventually(lambda: recorder.events)
    await eventually(lambda: _is(world, "g", 0))
    assert recorder.attempts == [1]


async def test_case_S05_buffered_entries_are_not_stolen(world: World) -> None:
    seen: list[Any] = []
    publisher = world.hub()
    for number in range(8):
        await publisher.publish("orders", an_event(number))
    async with anyio.create_task_group() as consuming:
        for _ in range(2):
            consuming.start_soon(_work_two_at_a_time, world, seen)
        await eventually(lambda: len(seen) >= 8, timeout=15)
        await eventually(lambda: _is(world, "g", 0))
        consuming.cancel_scope.cancel()
    assert sorted(seen) == list(range(8))


async def _work_two_at_a_time(world: World, seen: list[Any]) -> None:
    hub = world.hub(reclaim_interval_ms=50, reclaim_idle_ms=500)
    async with hub.messages("orders", group="g", max_in_flight=4) as messages:

        async def work() -> None:
            async for message in messages:
                async with message.process():
                    seen.append(message.event["data"])
                    await anyio.sleep(1)

        async with anyio.create_task_group() as workers:
            workers.start_soon(work)
            workers.start_soon(work)


async def test_an_entry_whose_handler_returned_without_settling_is_taken_over_by_a_sibling(world: World) -> None:
    hub, silent = world.hub(reclaim_interval_ms=50, reclaim_idle_ms=200), Recorder.silent()
    await hub.subscribe("orders", silent, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: silent.events)
    sibling, recorder = world.hub(reclaim_interval_ms=50, reclaim_idle_ms=200), Recorder()
    await sibling.subscribe("orders", recorder, group="g")
    await eventually(lambda: recorder.attempts == [2], timeout=3)
    assert len(silent.events) == 1


@pytest.mark.parametrize("dead_letters", [False, True])
async def test_an_entry_that_kills_its_consumers_ends_at_the_cap_c18(world: World, dead_letters: bool) -> None:
    await world.plain.xadd(world.key("orders"), {"event": json.dumps(an_event("poison"))})
    await _leave_pending(world, deliveries=5)
    hub = world.hub(
        reclaim_interval_ms=50, reclaim_idle_ms=1, max_delivery_attempts=5, dead_letters=dead_letters, block_ms=50
    )
    recorder = Recorder()
    await hub.subscribe("orders", recorder, group="g")
    await eventually(lambda: hub.counters.dead_lettered if dead_letters else hub.counters.dropped)
    assert recorder.events == []
    assert await world.pending("orders", "g") == 0
    letters = await world.plain.xrange(companion(world.prefix, "dead", world.key("orders")))
    assert [letter["attempts"] for _, letter in letters] == (["5"] if dead_letters else [])


async def test_deliveries_to_dead_consumers_count_as_attempts_c18(world: World) -> None:
    await world.plain.xadd(world.key("orders"), {"event": json.dumps(an_event(1))})
    await _leave_pending(world, deliveries=3)
    hub = world.hub(reclaim_interval_ms=50, reclaim_idle_ms=1, max_delivery_attempts=5)
    nacking = Recorder.nacking()
    await hub.subscribe("orders", nacking, group="g")
    await eventually(lambda: hub.counters.dropped == 1)
    assert nacking.attempts == [4, 5]


async def test_a_sweep_takes_more_than_one_page_and_more_than_the_limit_c18(world: World) -> None:
    for number in range(131):
        await world.plain.xadd(world.key("orders"), {"event": json.dumps(an_event(number))})
    await _leave_pending(world, deliveries=1)
    hub = world.hub(reclaim_interval_ms=60_000, reclaim_idle_ms=1)
    recorder = Recorder.slow(0.01)
    await hub.subscribe("orders", recorder, group="g", max_in_flight=10)
    await eventually(lambda: len(recorder.events) == 131)
    assert sorted(recorder.data) == list(range(131))


async def test_case_S15_entries_trimmed_before_they_were_handled_are_forgotten_and_counted_c19(
    world: World,
) -> None:
    crashing, silent = world.hub(), Recorder.silent()
    await crashing.subscribe("orders", silent, group="g")
    for number in range(3):
        await crashing.publish("orders", an_event(number))
    await eventually(lambda: len(silent.events) == 3)
    await world.crash(crashing)
    await world.plain.xtrim(world.key("orders"), maxlen=1, approximate=False)
    hub, recorder = world.hub(reclaim_interval_ms=50, reclaim_idle_ms=1), Recorder()
    await hub.subscribe("orders", recorder, group="g")
    await eventually(lambda: recorder.events and hub.counters.trimmed == 2)
    await eventually(lambda: _is(world, "g", 0))
    assert recorder.data == [2]


async def test_a_nack_of_an_entry_that_was_trimmed_meanwhile_still_redelivers(world: World) -> None:
    hub = world.hub(reclaim_idle_ms=100, reclaim_interval_ms=50)

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        if event["deliveryAttempt"] == 1:
            await world.plain.xtrim(world.key("orders"), maxlen=0, approximate=False)
            await anyio.sleep(0.3)  # three idle times: the entry is refreshed, or left alone, several times
            await nack()
        else:
            await recorder(event, ack, nack)

    recorder = Recorder()
    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.attempts == [2])


async def test_a_handler_over_the_in_flight_timeout_is_nacked_and_its_late_ack_is_nothing_c20(
    world: World,
) -> None:
    hub = world.hub(in_flight_timeout_ms=200, reclaim_interval_ms=0, max_delivery_attempts=2)
    recorder = Recorder.slow(0.6)
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.attempts == [1, 2])
    await eventually(lambda: hub.counters.dropped == 1)
    await anyio.sleep(0.7)  # the handlers ack in the end
    assert recorder.attempts == [1, 2]
    assert await world.pending("orders", "g") == 0


async def test_extending_resets_the_in_flight_timeout_and_the_idle_time_c20(world: World) -> None:
    hub = world.hub(in_flight_timeout_ms=300, reclaim_interval_ms=0)
    async with hub.messages("orders", group="g") as messages:
        await hub.publish("orders", an_event(1))
        message = await messages.next(timeout=5)
        for _ in range(4):
            await anyio.sleep(0.15)
            await message.extend()
            [pending] = await world.plain.xpending_range(world.key("orders"), "g", "-", "+", 10)
            assert pending["time_since_delivered"] < 140
            assert pending["times_delivered"] == 1
        await message.ack()
        await message.extend()
    assert await world.pending("orders", "g") == 0


async def test_the_in_flight_timeout_holds_for_subscribers_without_a_group_c20(world: World) -> None:
    hub = world.hub(in_flight_timeout_ms=100, max_delivery_attempts=3)
    recorder = Recorder.slow(0.3)
    await hub.subscribe("orders", recorder)
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.attempts == [1, 2, 3])


async def test_many_topics_are_swept_in_few_commands_and_none_is_missed_c18(server_world: RedisWorld) -> None:
    topics = [f"topic-{number}" for number in range(30)]
    for topic in topics:
        await server_world.plain.xadd(server_world.key(topic), {"event": json.dumps(an_event(topic))})
        await server_world.plain.xgroup_create(server_world.key(topic), "g", "0")
        await server_world.plain.xreadgroup("g", "dead", {server_world.key(topic): ">"})
    hub, recorder = server_world.hub(reclaim_interval_ms=500, reclaim_idle_ms=300), Recorder()
    for topic in topics:
        await hub.subscribe(topic, recorder, group="g")
    await eventually(lambda: len(recorder.events) == 30)
    assert sorted(recorder.data) == sorted(topics)
    sent: list[str] = []
    async with server_world.server.client() as watcher, watcher.monitor() as monitor:
        with anyio.move_on_after(1.3):
            while True:
                seen = await monitor.next_command()
                if server_world.prefix in seen["command"] and seen["client_type"] != "lua":
                    sent.append(seen["command"].split()[0].upper())
    assert 2 <= sent.count("EVALSHA") < 30  # several sweeps of all 30, in fewer commands than one sweep of each
    assert "XPENDING" not in sent


async def test_one_topic_that_cannot_be_asked_does_not_keep_the_others_from_being_swept_c18(world: World) -> None:
    await world.plain.xadd(world.key("orders"), {"event": json.dumps(an_event(1))})
    await world.plain.xgroup_create(world.key("orders"), "g", "0")
    await world.plain.xreadgroup("g", "dead", {world.key("orders"): ">"})
    hub, recorder = world.hub(reclaim_interval_ms=200, reclaim_idle_ms=600), Recorder()
    await hub.subscribe("bad", Recorder(), group="g")
    await hub.subscribe("orders", recorder, group="g")
    await world.plain.delete(world.key("bad"))
    await world.plain.set(world.key("bad"), "another type")
    assert recorder.data == []
    await eventually(lambda: recorder.data == [1], timeout=3)


_WORKER = """
    import asyncio, sys
    import streamhold

    async def main(url, prefix):
        hub = streamhold.RedisStreamsPubSub(url, key_prefix=prefix, reclaim_idle_ms=400, reclaim_interval_ms=200)
        async def handle(event, ack, nack):
            print(event["data"], flush=True)
            await asyncio.sleep(3600)
        await hub.subscribe("orders", handle, group="g", max_in_flight=5)
        await asyncio.sleep(3600)

    asyncio.run(main(*sys.argv[1:]))
"""


async def test_case_S24_entries_of_a_killed_process_are_handled_by_a_sibling(server_world: RedisWorld) -> None:
    publisher = server_world.hub()
    for number in range(20):
        await publisher.publish("orders", an_event(number))
    command = [sys.executable, "-c", textwrap.dedent(_WORKER), server_world.server.url(), server_world.prefix]
    async with await anyio.open_process(command, stdout=subprocess.DEVNULL, stderr=None) as worker:
        try:
            await eventually(lambda: _is(server_world, "g", 5))
            # Long enough that a busy machine does not keep the living worker from saying that it is still at work.
            sibling, recorder = server_world.hub(reclaim_idle_ms=2000, reclaim_interval_ms=200), Recorder()
            await sibling.subscribe("orders", recorder, group="g")
            await eventually(lambda: len(recorder.events) == 15)
            await anyio.sleep(2.5)  # it keeps its five through several sweeps
            assert len(recorder.events) == 15
        finally:
            worker.kill()
    await eventually(lambda: len(recorder.events) == 20)
    assert sorted(recorder.data) == list(range(20))


async def _leave_pending(world: World, deliveries: int) -> None:
    """Make the whole stream pending for consumers that are gone."""
    key = world.key("orders")
    await world.plain.xgroup_create(key, "g", "0")
    reply = await world.plain.xreadgroup("g", "dead-1", {key: ">"})
    ids = [entry for entry, _ in reply[0][1]]
    for number in range(2, deliveries + 1):
        await world.plain.xclaim(key, "g", f"dead-{number}", 0, ids)
    await anyio.sleep(0.01)  # idle for at least a millisecond


async def _is(world: World, group: str, count: int) -> bool:
    if group not in await world.groups("orders"):
        return False
    return await world.pending("orders", group) == count
