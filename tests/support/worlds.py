"""The worlds that the contract is held against: a backend, several hubs on it, and what a third party sees.

A capability that a backend lacks is declared: the modes by `modes`, a server behind a network by its class. Tests that
need it ask for the fixture `server_world`; the others run in every world.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import redis.asyncio

from streamhold import InProcessPubSub, InProcessServer, RedisStreamsPubSub
from support.inprocess import PlainInProcess

if TYPE_CHECKING:
    from streamhold._backends.redis.lease import RedisLeases
    from streamhold_dev.redisserver import RedisServer

__all__ = ["AnyHub", "InProcessWorld", "LeaseWorld", "RedisWorld", "World"]

AnyHub: TypeAlias = RedisStreamsPubSub | InProcessPubSub


class World(ABC):
    """Hubs that share what keeps their topics, and one key prefix."""

    modes: ClassVar[tuple[str, ...]]

    def __init__(self, prefix: str, plain: redis.asyncio.Redis, stack: AsyncExitStack) -> None:
        self.prefix = prefix
        self.plain = plain
        """A client that knows nothing of the library: an administrator, or another program."""
        self._stack = stack

    @abstractmethod
    def _make(self, **options: Any) -> AnyHub:
        """Make a hub."""

    def hub(self, **options: Any) -> Any:
        """A hub of its own process as far as the others can tell; closed at the end of the test."""
        hub = self._make(**{"key_prefix": self.prefix, "close_timeout": 2.0, **options})
        self._stack.push_async_callback(hub.close)
        return hub

    async def crash(self, hub: AnyHub) -> None:
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


class RedisWorld(World):
    """Hubs of one Redis server."""

    modes = ("pull",)

    def __init__(self, server: RedisServer, prefix: str, plain: redis.asyncio.Redis, stack: AsyncExitStack) -> None:
        super().__init__(prefix, plain, stack)
        self.server = server

    def hub(self, url: str | None = None, **options: Any) -> RedisStreamsPubSub:
        """A hub, connected by this URL if one is given."""
        hub: RedisStreamsPubSub = super().hub(**({"url": url} if url else {}), **options)
        return hub

    def _make(self, **options: Any) -> RedisStreamsPubSub:
        return RedisStreamsPubSub(**{"url": self.server.url(), "block_ms": 100, **options})


class InProcessWorld(World):
    """Hubs of one server in this process."""

    modes = ("pull", "push")

    def __init__(self, prefix: str, stack: AsyncExitStack) -> None:
        self._server = InProcessServer()
        super().__init__(prefix, PlainInProcess(self._server), stack)

    def _make(self, **options: Any) -> InProcessPubSub:
        # How long a read waits and a publish may take is nothing that this backend knows.
        known = {name: value for name, value in options.items() if name not in ("block_ms", "publish_timeout")}
        return InProcessPubSub(self._server, **known)


@dataclass(frozen=True)
class LeaseWorld:
    """Something that keeps leases."""

    provider: Callable[..., RedisLeases]
    """Makes a provider with these rules."""
    plain: redis.asyncio.Redis
