"""Run a job on exactly one of many schedulers: `scheduler.py NAME`.

The lease renews itself while the block runs. If this process dies another takes over within the ttl, with a larger
token: whatever the job writes to can refuse the smaller one.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import streamhold


async def main(name: str) -> None:
    # How a pod is asked to end: cancel what runs, so that every block is left in order (give the lease back).
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    async with streamhold.connect() as hub:
        print(f"{name} is waiting", flush=True)
        async with hub.hold_lease("jobs/nightly-report", wait=3600, owner=name) as lease:
            print(f"{name} runs the job with token {lease.token}", flush=True)
            while True:
                lease.ensure_held()
                await asyncio.sleep(0.2)  # stands for one step of the job


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "scheduler"))
