"""Handle orders as one of the group `billing`: `worker.py NAME`. Each order leaves a receipt.

An order is acknowledged after its receipt was written. A worker that dies in between leaves the order to its siblings,
so a receipt can come twice and never be missing: at least once, not exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import streamhold

WORK_SECONDS = 0.05  # stands for the real work


async def main(name: str) -> None:
    # How a pod is asked to end: cancel what runs, so that every block is left in order (hand back what is in work).
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    async with (
        streamhold.connect() as hub,
        asyncio.TaskGroup() as running,
        # At most 20 orders are in work here at once; the rest stays with Redis for the siblings.
        hub.messages("orders", group="billing", max_in_flight=20) as orders,
    ):
        print(f"{name} is ready", flush=True)
        async for message in orders:
            running.create_task(handle(hub, name, message))


async def handle(hub: streamhold.RedisStreamsPubSub, name: str, message: streamhold.Message) -> None:
    async with message.process():  # acknowledges on success; an exception hands the order back
        order = message.event["data"]["order"]
        await asyncio.sleep(WORK_SECONDS)
        receipt = {"type": "order.billed", "data": {"order": order, "worker": name}, "runId": message.event["runId"]}
        await hub.publish("receipts", receipt)
        print(f"{name} billed order {order} (attempt {message.attempt})", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "worker"))
