"""What is measured: each case does the same to the same server through our public API and through raw redis-py."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

import streamhold
from benchmarks.rounds import Case, Side
from streamhold._backends.redis.client import RedisClient
from streamhold_dev import debian
from streamhold_dev.redisserver import RedisServer

__all__ = ["Bench"]

EVENT = {
    "type": "order.created",
    "data": {"id": 7, "customer": "c-1042", "items": [{"sku": "a-1", "count": 2}, {"sku": "b-9", "count": 1}]},
    "runId": "run-0042",
}
# What our publish makes of it, ready made: redis-py's side pays for no JSON.
WRITTEN = json.dumps(
    {
        **EVENT,
        "id": "6fa459ea-ee8a-4ca4-894e-db77e160355e",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "deliveryAttempt": 1,
    }
)
IN_FLIGHT = 100
LENGTH = 10_000
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Bench:
    """One server, our hub and a redis-py client on it, and the cases."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.hub: Any = None
        self.client: Any = None
        self.raw: Any = None
        self._topics = iter(range(10**6))
        self._topic = ""

    async def open(self) -> None:
        """Connect everything."""
        self.hub = streamhold.connect(self.server.url())
        self.client = RedisClient.from_url(self.server.url())
        self.raw = redis.asyncio.Redis.from_url(self.server.url())

    async def close(self) -> None:
        """Disconnect everything."""
        await self.hub.close()
        await self.client.aclose()
        await self.raw.aclose()

    def cases(self) -> Iterator[Case]:
        """All cases, in the order of the table."""
        yield Case(
            "publish, 100 at once",
            40_000,
            [
                Side("streamhold", lambda n: self._together(n, self._publish)),
                Side("redis-py pipelines of 100", self._pipelines),
                Side("streamhold's wire alone", lambda n: self._together(n, self._execute)),
                *self._redis_benchmark(),
            ],
            {"redis-py pipelines of 100": 3.0, "redis-benchmark -c 1 -P 100": 0.4},
        )
        yield Case(
            "publish, one by one",
            8_000,
            [
                Side("streamhold", self._publish),
                Side("redis-py xadd", self._xadd),
                Side("streamhold's wire alone", self._execute),
            ],
            {"redis-py xadd": 2.0},
        )
        yield Case(
            "consume + ack",
            30_000,
            [
                Side("streamhold", self._iterate, self._fill),
                Side("redis-py loop of 100", self._raw_loop, self._fill),
                Side("streamhold's subscribe()", self._subscribe, self._fill),
            ],
            {"redis-py loop of 100": 0.6},
        )
        yield Case(
            "lease acquire + release",
            4_000,
            [Side("streamhold", self._leases), Side("redis-py SET NX + EVAL", self._raw_leases)],
            {},
        )

    # ---- publish ----

    @staticmethod
    async def _together(operations: int, work: Callable[[int], Awaitable[None]]) -> None:
        await asyncio.gather(*(work(operations // IN_FLIGHT) for _ in range(IN_FLIGHT)))

    async def _publish(self, operations: int) -> None:
        publish = self.hub.publish
        for _ in range(operations):
            await publish("bench", EVENT)

    async def _execute(self, operations: int) -> None:
        execute = self.client.execute
        for _ in range(operations):
            await execute(b"XADD", b"bench:wire", b"MAXLEN", b"~", LENGTH, b"*", b"event", WRITTEN)

    async def _pipelines(self, operations: int) -> None:
        for _ in range(operations // IN_FLIGHT):
            pipeline = self.raw.pipeline(transaction=False)
            for _ in range(IN_FLIGHT):
                pipeline.xadd("bench:raw", {"event": WRITTEN}, maxlen=LENGTH, approximate=True)
            await pipeline.execute()

    async def _xadd(self, operations: int) -> None:
        xadd = self.raw.xadd
        for _ in range(operations):
            await xadd("bench:raw", {"event": WRITTEN}, maxlen=LENGTH, approximate=True)

    def _redis_benchmark(self) -> list[Side]:
        program = debian.program("redis-benchmark")
        if not program.exists():
            return []

        async def rate(operations: int) -> float:
            return await asyncio.to_thread(_run_redis_benchmark, program, self.server, operations)

        async def nothing(operations: int) -> None:
            """It times itself."""

        return [Side("redis-benchmark -c 1 -P 100", nothing, rate=rate)]

    # ---- consume ----

    async def _fill(self, operations: int) -> None:
        """A topic of its own, with so many events in it, for one side of one round."""
        await self.raw.delete(f"mastra:topic:{self._topic}")
        self._topic = f"consume-{next(self._topics)}"
        for start in range(0, operations, 1000):
            pipeline = self.raw.pipeline(transaction=False)
            for _ in range(min(1000, operations - start)):
                pipeline.xadd(f"mastra:topic:{self._topic}", {"event": WRITTEN})
            await pipeline.execute()

    async def _iterate(self, operations: int) -> None:
        seen = 0
        async with self.hub.messages(self._topic, group="bench", max_in_flight=256) as messages:
            async for message in messages:
                seen += len(message.event["data"]["items"]) > 1
                message.ack()
                if seen == operations:
                    break
        await self._settled(operations)

    async def _subscribe(self, operations: int) -> None:
        seen, done = 0, asyncio.Event()

        async def handle(event: dict[str, Any], ack: Callable[[], Any], nack: Callable[[], Any]) -> None:
            nonlocal seen
            seen += len(event["data"]["items"]) > 1
            ack()
            if seen == operations:
                done.set()

        await self.hub.subscribe(self._topic, handle, group="bench")
        await done.wait()
        await self.hub.unsubscribe(self._topic, handle)
        await self._settled(operations)

    async def _settled(self, operations: int) -> None:
        """Everything was read and acknowledged at the server: the work was really done."""
        async with asyncio.timeout(10):
            while True:
                group = (await self.raw.xinfo_groups(f"mastra:topic:{self._topic}"))[0]
                if group["pending"] == 0 and group.get("entries-read", operations) == operations:
                    return
                await asyncio.sleep(0.001)

    async def _raw_loop(self, operations: int) -> None:
        key, seen = f"mastra:topic:{self._topic}", 0
        with suppress(redis.ResponseError):
            await self.raw.xgroup_create(key, "bench", "0")
        while seen < operations:
            reply = await self.raw.xreadgroup("bench", "one", {key: ">"}, count=100, block=1000)
            entries = reply[key.encode()][0] if isinstance(reply, dict) else reply[0][1]
            for _, fields in entries:
                event = json.loads(fields[b"event"])
                seen += len(event["data"]["items"]) > 1
            await self.raw.xack(key, "bench", *(entry for entry, _ in entries))
        await self._settled(operations)

    # ---- leases ----

    async def _leases(self, operations: int) -> None:
        acquire, release = self.hub.acquire_lease, self.hub.release_lease
        for _ in range(operations):
            grant = await acquire("bench", "me", 15_000)
            assert grant.acquired
            await release("bench", "me")

    async def _raw_leases(self, operations: int) -> None:
        for _ in range(operations):
            assert await self.raw.set("bench:lease", "me", nx=True, px=15_000)
            assert await self.raw.eval(_RELEASE, 1, "bench:lease", "me")


def _run_redis_benchmark(program: Path, server: RedisServer, operations: int) -> float:
    command = [
        str(program), "-h", server.host, "-p", str(server.port), "-n", str(operations), "-c", "1", "-P", "100", "--csv",
        "XADD", "bench:rb", "MAXLEN", "~", str(LENGTH), "*", "event", WRITTEN,
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    line = next(line for line in said.splitlines() if line.startswith('"XADD'))
    return float(line.rsplit(",", 7)[1].strip('"'))  # the name before the seven figures has quotes and commas in it
