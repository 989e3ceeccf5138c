"""See everything: `auditor.py [COUNT]` subscribes to both topics without a group.

It ends when COUNT orders have a receipt.
"""

from __future__ import annotations

import asyncio
import sys

import streamhold


class Audit:
    """What has been seen so far; a set, since an event can come more than once."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.orders: set[int] = set()
        self.billed_by: dict[int, str] = {}
        self.complete = asyncio.Event()

    async def order(self, event: streamhold.Event, ack: streamhold.Settle, nack: streamhold.Settle) -> None:
        self.orders.add(event["data"]["order"])
        await ack()
        self.check()

    async def receipt(self, event: streamhold.Event, ack: streamhold.Settle, nack: streamhold.Settle) -> None:
        self.billed_by[event["data"]["order"]] = event["data"]["worker"]
        await ack()
        self.check()

    def check(self) -> None:
        if len(self.orders) >= self.expected and len(self.billed_by) >= self.expected:
            self.complete.set()


async def main(count: int) -> None:
    audit = Audit(count)
    async with streamhold.connect() as hub:
        await hub.subscribe("orders", audit.order)
        await hub.subscribe("receipts", audit.receipt)
        print("auditor is ready", flush=True)
        while not audit.complete.is_set():
            try:
                await asyncio.wait_for(audit.complete.wait(), timeout=1)
            except TimeoutError:
                print(f"audited {len(audit.orders)} orders, {len(audit.billed_by)} with a receipt", flush=True)
    workers = sorted(set(audit.billed_by.values()))
    shares = ", ".join(f"{worker}: {list(audit.billed_by.values()).count(worker)}" for worker in workers)
    print(f"complete: {len(audit.orders)} orders, {len(audit.billed_by)} with a receipt ({shares})", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
