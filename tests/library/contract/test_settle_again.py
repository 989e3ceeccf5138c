"""Settling that failed: nobody has to notice for an event to go on (C-15, C-22)."""

from __future__ import annotations

import asyncio

import pytest

from streamhold import BackendError, ServerFull
from streamhold.types import Event, Settle
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event
from support.worlds import AnyHub, RedisWorld

pytestmark = pytest.mark.anyio


async def test_a_nack_that_the_full_server_refused_is_repeated_when_there_is_room_c15(own_world: RedisWorld) -> None:
    hub = own_world.hub(reclaim_interval_ms=0)
    refused: list[Exception] = []

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        if event["deliveryAttempt"] > 1:
            await ack()
            return
        await own_world.plain.config_set("maxmemory", "1")
        try:
            await nack()
        except ServerFull as error:
            refused.append(error)

    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: refused)
    assert await own_world.pending("orders", "g") == 1
    await own_world.plain.config_set("maxmemory", "0")

    async def settled() -> bool:
        return await own_world.pending("orders", "g") == 0 and len(await own_world.entries("orders")) == 2

    await eventually(settled)


async def test_acks_that_nobody_waited_for_are_repeated_and_the_iterator_goes_on_c15(own_world: RedisWorld) -> None:
    hub = own_world.hub(reclaim_interval_ms=0)
    for number in range(6):
        await hub.publish("orders", an_event(number))
    seen: list[int] = []
    async with hub.messages("orders", group="g", max_in_flight=2) as messages:
        await own_world.plain.execute_command("ACL", "SETUSER", "default", "-xack")
        for _ in range(2):
            message = await messages.next(timeout=10)
            seen.append(message.event["data"])
            async with message.process():
                pass
        await eventually(lambda: hub._settler._unsettled)
        await own_world.plain.execute_command("ACL", "SETUSER", "default", "+xack")
        for _ in range(4):
            message = await messages.next(timeout=10)
            seen.append(message.event["data"])
            await message.ack()
    assert seen == [0, 1, 2, 3, 4, 5]
    assert await own_world.pending("orders", "g") == 0


async def test_what_stays_refused_is_not_repeated_in_a_hot_loop(own_world: RedisWorld) -> None:
    hub = own_world.hub(reclaim_interval_ms=0, block_ms=1000)
    failures: list[Exception] = []

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        try:
            await ack()
        except BackendError as error:
            failures.append(error)

    await hub.subscribe("orders", handle, group="g")
    await own_world.plain.execute_command("ACL", "SETUSER", "default", "-xack")
    for number in range(100):
        await hub.publish("orders", an_event(number))
    await eventually(lambda: len(failures) == 100)
    await own_world.plain.config_resetstat()
    await asyncio.sleep(3)
    stats = await own_world.plain.info("commandstats")
    assert stats.get("cmdstat_xack", {}).get("rejected_calls", 0) <= 4
    await own_world.plain.execute_command("ACL", "SETUSER", "default", "+xack")

    async def settled() -> bool:
        return await own_world.pending("orders", "g") == 0

    await eventually(settled, timeout=20)


async def test_closing_acks_what_was_handled_rather_than_handing_it_back(own_world: RedisWorld) -> None:
    hub = own_world.hub()
    recorder = Recorder(lambda event, ack, nack: None)
    await hub.subscribe("orders", recorder, group="g")
    await own_world.plain.execute_command("ACL", "SETUSER", "default", "-xack")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.settles)
    with pytest.raises(BackendError):
        await recorder.settles[0][0]()
    await own_world.plain.execute_command("ACL", "SETUSER", "default", "+xack")
    await hub.close()
    assert await own_world.pending("orders", "g") == 0
    assert len(await own_world.entries("orders")) == 1


async def test_ack_and_nack_can_be_made_tasks_and_awaited_by_several(hub: AnyHub) -> None:
    done = asyncio.Event()

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ack())  # type: ignore[arg-type]
            group.create_task(ack())  # type: ignore[arg-type]
        cancelled = asyncio.create_task(nack())  # type: ignore[arg-type]
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await asyncio.gather(ack(), asyncio.wait_for(ack(), 5))
        done.set()

    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event(1))
    await asyncio.wait_for(done.wait(), 10)


async def test_a_task_made_of_an_ack_raises_what_failed_and_can_be_cancelled(own_world: RedisWorld) -> None:
    hub = own_world.hub()
    recorder = Recorder.silent()
    await hub.subscribe("orders", recorder, group="g")
    await own_world.plain.execute_command("ACL", "SETUSER", "default", "-xack")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.settles)
    ack, _ = recorder.settles[0]
    given_up = asyncio.create_task(ack())  # type: ignore[arg-type]
    failing = asyncio.create_task(ack())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(BackendError):
        await failing
    assert given_up.cancelled()
    await own_world.plain.execute_command("ACL", "SETUSER", "default", "+xack")
