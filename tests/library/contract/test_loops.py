"""One hub belongs to one event loop: another one gets a clear error, and nothing is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from streamhold import RedisStreamsPubSub
from support.subscriber import Recorder, an_event

if TYPE_CHECKING:
    from support.worlds import RedisWorld

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "call",
    [
        lambda hub: hub.publish("orders", an_event(2)),
        lambda hub: hub.subscribe("orders", Recorder(), group="g"),
        lambda hub: hub.acquire_lease("key", "me", 1000),
        lambda hub: hub.close(),
    ],
    ids=["publish", "subscribe", "acquire_lease", "close"],
)
async def test_a_call_in_another_loop_is_refused_and_harms_nobody(
    world: RedisWorld, call: Callable[[RedisStreamsPubSub], Awaitable[Any]]
) -> None:
    hub = world.hub()
    await hub.publish("orders", an_event(1))

    async def elsewhere() -> None:
        await call(hub)

    with pytest.raises(RuntimeError, match="belongs to the event loop"):
        await asyncio.to_thread(asyncio.run, elsewhere())
    await hub.publish("orders", an_event(3))
    assert len(await world.entries("orders")) == 2
    assert not await world.plain.exists(f"{world.prefix}:lease:key")
