"""Real processes that compete for one lease, and the holder of it killed without warning (C-47, C-48)."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from streamhold import FenceGate
from streamhold_dev.waiting import eventually

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio

TTL = 1.0
HOLDER = """
    import asyncio, json, os, sys, streamhold

    async def main(url, prefix):
        async with streamhold.connect(url, key_prefix=prefix) as hub:
            async with hub.hold_lease("job", ttl=1.0, wait=60) as lease:
                print(json.dumps({"pid": os.getpid(), "token": lease.token}), flush=True)
                await asyncio.sleep(3600)

    asyncio.run(main(*sys.argv[1:]))
"""


async def test_after_each_sigkill_of_the_holder_another_takes_over_within_the_ttl_with_a_larger_token(
    redis_server: RedisServer, key_prefix: str, plain: redis.asyncio.Redis
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), redis_server.url(), key_prefix]
    processes = [await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE) for _ in range(3)]
    running = {process.pid: process for process in processes}
    holders: asyncio.Queue[dict[str, int]] = asyncio.Queue()

    async def listen(process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            holders.put_nowait(json.loads(line))

    listening = [asyncio.create_task(listen(process)) for process in processes]
    resource = FenceGate("job")
    try:
        while running:
            holder = await asyncio.wait_for(holders.get(), 20)
            assert holder["token"] > resource.seen
            resource.admit(holder["token"])
            await eventually(lambda: _waiting(plain, len(running)), message="the others wait")
            killed_at = time.monotonic()
            process = running.pop(holder["pid"])
            process.send_signal(signal.SIGKILL)
            await process.wait()
            if running:
                next_holder = await asyncio.wait_for(holders.get(), 20)
                assert time.monotonic() - killed_at < TTL + 1.0
                holders.put_nowait(next_holder)
                assert holders.qsize() == 1, "one at a time"
    finally:
        for process in running.values():
            process.kill()
            await process.wait()
        await asyncio.gather(*listening)


async def _waiting(plain: redis.asyncio.Redis, processes: int) -> bool:
    connected = {client["name"].rpartition("-")[2] for client in await plain.client_list()}
    return len(connected & {name for name in connected if name.isdecimal()}) >= processes
