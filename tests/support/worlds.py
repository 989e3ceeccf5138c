"""The worlds that the contract is held against: a backend, several hubs on it, and what a third party sees."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import redis.asyncio

from streamhold import RedisStreamsPubSub

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

__all__ = ["RedisWorld"]


class RedisWorld:
    """Hubs that share one server and one key prefix."""

    modes = ("pull",)

    def __init__(self, server: RedisServer, prefix: str, plain: redis.asyncio.Redis, stack: AsyncExitStack) -> None:
        self.server = server
        self.prefix = prefix
        self.plain = plain
        """A client that knows nothing of the library: an administrator, or another program."""
        self._stack = stack

    def hub(self, url: str | None = None, **options: Any) -> RedisStreamsPubSub:
        """A hub of its own process as far as the server can tell; closed at the end of the test."""
        settings: dict[str, Any] = {"key_prefix": self.prefix, "block_ms": 100, "close_timeout": 2.0, **options}
        hub = RedisStreamsPubSub(url or self.server.url(), **settings)
        self._stack.push_async_callback(hub.close)
        return hub

    async def crash(self, hub: RedisStreamsPubSub) -> None:
        """End a hub as SIGKILL would: nothing is settled, handed back or said."""
        hub._closed = True
        await hub._client.aclose()
        await hub._background.cancel()

    def key(self, topic: str) -> str:
        """The topic's stream."""
        return f"{self.prefix}:{topic}"

    async def pending(self, topic: str, group: str) -> int:
        """Entries of a group that nobody settled."""
        summary = await self.plain.xpending(self.key(topic), group)
        return int(summary["pending"])

    async def groups(self, topic: str) -> dict[str, dict[str, Any]]:
        """The groups of a topic by name; none when there is no stream."""
        if not await self.plain.exists(self.key(topic)):
            return {}
        return {group["name"]: group for group in await self.plain.xinfo_groups(self.key(topic))}

    async def entries(self, topic: str) -> list[tuple[str, dict[str, str]]]:
        """What the stream holds."""
        return await self.plain.xrange(self.key(topic))  # type: ignore[no-any-return]
