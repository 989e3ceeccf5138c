"""Messages: a subscription to iterate over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from streamhold import ConfigError, HubClosed
from streamhold_dev.waiting import eventually
from support.subscriber import an_event

if TYPE_CHECKING:
    from support.worlds import AnyHub, World

pytestmark = pytest.mark.anyio


async def test_processing_acks_on_success(world: World, hub: AnyHub) -> None:
    await hub.publish("orders", an_event({"n": 1}))
    async with hub.messages("orders", group="g") as messages:
        message = await messages.next(timeout=5)
        async with message.process():
            assert message.event["data"] == {"n": 1}
            assert message.topic == "orders"
            assert message.attempt == 1
            assert message.id == message.event["id"]
            assert message.entry_id == (await world.entries("orders"))[0][0]
        await eventually(lambda: _is_pending(world, 0))


async def test_processing_nacks_on_an_exception_and_lets_it_through(hub: AnyHub) -> None:
    await hub.publish("orders", an_event(1))
    async with hub.messages("orders", group="g") as messages:
        with pytest.raises(ZeroDivisionError):
            async with (await messages.next(timeout=5)).process():
                _ = 1 / 0
        again = await messages.next(timeout=5)
        assert again.attempt == 2
        await again.ack()


async def test_processing_hands_back_when_it_is_cancelled(hub: AnyHub) -> None:
    await hub.publish("orders", an_event(1))
    async with hub.messages("orders", group="g") as messages:
        message = await messages.next(timeout=5)
        with anyio.move_on_after(0.01):
            async with message.process():
                await anyio.sleep(3600)
        again = await messages.next(timeout=5)
        assert again.attempt == 1
        await again.ack()


async def test_no_more_than_max_in_flight_are_here_at_once(world: World, hub: AnyHub) -> None:
    for number in range(20):
        await hub.publish("orders", an_event(number))
    seen: list[Any] = []
    async with hub.messages("orders", group="g", max_in_flight=4) as messages:
        while len(seen) < 20:
            message = await messages.next(timeout=5)
            assert await world.pending("orders", "g") <= 4
            seen.append(message.event["data"])
            await message.ack()
    assert seen == list(range(20))


async def test_leaving_hands_back_what_was_buffered(world: World) -> None:
    hub = world.hub()
    for number in range(10):
        await hub.publish("orders", an_event(number))
    async with hub.messages("orders", group="g", max_in_flight=10) as messages:
        first = await messages.next(timeout=5)
        await eventually(lambda: _is_pending(world, 10))
    other: list[tuple[Any, int]] = []
    async with world.hub().messages("orders", group="g") as others:
        while len(other) < 9:
            message = await others.next(timeout=2)
            other.append((message.event["data"], message.attempt))
            await message.ack()
    assert sorted(other) == [(number, 1) for number in range(1, 10)]
    await first.ack()
    await eventually(lambda: _is_pending(world, 0))


async def test_several_tasks_may_share_one_iterator(hub: AnyHub) -> None:
    seen: list[Any] = []
    async with hub.messages("orders", group="g") as messages, anyio.create_task_group() as tasks:

        async def work() -> None:
            async for message in messages:
                async with message.process():
                    seen.append(message.event["data"])
                    await anyio.sleep(0.01)

        for _ in range(3):
            tasks.start_soon(work)
        for number in range(30):
            await hub.publish("orders", an_event(number))
        await eventually(lambda: len(seen) == 30)
        tasks.cancel_scope.cancel()
    assert sorted(seen) == list(range(30))


async def test_the_iteration_ends_when_the_hub_closes(hub: AnyHub) -> None:
    async with anyio.create_task_group() as tasks, hub.messages("orders") as messages:
        tasks.start_soon(hub.close)
        with anyio.fail_after(5):
            async for _ in messages:
                pytest.fail("nothing was published")
        with pytest.raises(HubClosed):
            await messages.next()


async def test_next_gives_up_at_its_timeout_and_loses_nothing(hub: AnyHub) -> None:
    async with hub.messages("orders", group="g") as messages:
        with pytest.raises(TimeoutError):
            await messages.next(timeout=0.05)
        await hub.publish("orders", an_event(1))
        assert (await messages.next(timeout=5)).event["data"] == 1


async def test_messages_must_be_entered_and_only_once(hub: AnyHub) -> None:
    messages = hub.messages("orders")
    with pytest.raises(RuntimeError, match="async with"):
        await messages.next()
    async with messages:
        with pytest.raises(RuntimeError, match="open already"):
            await messages.__aenter__()


@pytest.mark.parametrize(
    ("option", "wrong"), [("max_in_flight", 0), ("max_in_flight", None), ("start_from", "x"), ("group", "")]
)
async def test_a_wrong_argument_is_refused_at_once(hub: AnyHub, option: str, wrong: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        hub.messages("orders", **{option: wrong})
    assert refused.value.option == option


async def _is_pending(world: World, count: int) -> bool:
    return await world.pending("orders", "g") == count


async def test_a_standstill_by_messages_that_nobody_settles_is_told(
    hub: AnyHub, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        await hub.publish("orders", an_event(number))
    async with hub.messages("orders", group="billing", max_in_flight=2) as messages:
        first, second = await messages.next(timeout=5), await messages.next(timeout=5)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(messages.next)
            await eventually(lambda: "settle each with process(), ack() or nack()" in caplog.text, timeout=10)
            assert "orders" in caplog.text
            assert "billing" in caplog.text
            await first.ack()
        await second.ack()
