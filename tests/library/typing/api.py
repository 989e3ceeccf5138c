"""What type checkers make of the public API; checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, assert_type

import streamhold
from streamhold import (
    Event,
    InProcessPubSub,
    InProcessServer,
    LeaseGrant,
    LeaseProvider,
    Message,
    Messages,
    PubSub,
    RedisStreamsPubSub,
    Settle,
)

pubsub: PubSub = RedisStreamsPubSub()
provider: LeaseProvider = RedisStreamsPubSub()
in_process: PubSub = InProcessPubSub()
in_process_provider: LeaseProvider = InProcessPubSub()
no_op: LeaseProvider = streamhold.NoopLeaseProvider()


async def handle(event: Event, ack: Settle, nack: Settle) -> None:
    assert_type(event, dict[str, Any])
    await ack()
    await nack()


def handle_in_thread(event: Event, ack: Settle, nack: Settle) -> None:
    ack()


async def use(hub: RedisStreamsPubSub) -> None:
    assert_type(streamhold.connect("redis://localhost"), RedisStreamsPubSub)
    assert_type(streamhold.connect("inprocess://", server=InProcessServer()), InProcessPubSub)
    await hub.subscribe("orders", handle, group="billing", start_from="latest", max_in_flight=10)
    await hub.subscribe("orders", handle_in_thread)
    await hub.subscribe("orders", lambda event, ack, nack: ack())
    await hub.publish("orders", {"type": "order.created", "data": {"id": 7}, "runId": "r-1"}, local_only=True)
    async with hub.messages("orders", group="billing", max_in_flight=64) as messages:
        assert_type(messages, Messages)
        assert_type(await messages.next(timeout=1.5), Message)
        async for message in messages:
            assert_type(message.attempt, int)
            assert_type(message.ack(), Awaitable[None])
            async with message.process():
                assert_type(message.event, dict[str, Any])
    async with hub.hold_lease("jobs/x", ttl=15, wait=5) as lease:
        assert_type(lease.token, int | None)
    grant = await hub.acquire_lease("jobs/x", "me", 15_000)
    assert_type(grant, LeaseGrant)
    acquired, owner, token = grant
    assert_type(acquired, bool)
    assert_type(owner, str | None)
    assert_type(token, int | None)
    hub.messages("orders", max_in_flight=None)  # type: ignore[arg-type]
    await hub.subscribe("orders", handle, start_from="now")  # type: ignore[arg-type]
