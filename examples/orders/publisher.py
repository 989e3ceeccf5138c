"""Publish orders: `publisher.py [COUNT]`. Reads the binding folder named by STREAMHOLD_BINDING."""

from __future__ import annotations

import asyncio
import sys

import streamhold

BATCH = 100  # published at once: they leave in one write


async def main(count: int) -> None:
    async with streamhold.connect() as hub:
        for start in range(1, count + 1, BATCH):
            numbers = range(start, min(start + BATCH, count + 1))
            await asyncio.gather(*(publish(hub, number) for number in numbers))
            print(f"published {numbers[-1]}", flush=True)


async def publish(hub: streamhold.RedisStreamsPubSub, number: int) -> None:
    await hub.publish("orders", {"type": "order.created", "data": {"order": number}, "runId": f"order-{number}"})


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
