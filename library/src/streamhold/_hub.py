"""The hub: what every backend gets on top of the contract, and how to connect one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, Self, overload

from streamhold import _lease
from streamhold._backends.base import Log, QueueSubscriber, Subscriber
from streamhold._backends.inprocess.server import InProcessClient, InProcessServer
from streamhold._backends.redis.pubsub import RedisBackend, backend_from_binding, backend_from_options, check_logger
from streamhold._binding import find_binding, load_binding
from streamhold._core.options import PubSubOptions, check_group, check_max_in_flight, check_start_from
from streamhold._lease import Lease
from streamhold._messages import Messages
from streamhold.errors import ConfigError, HubClosed
from streamhold.types import StartFrom

__all__ = ["EventEmitterPubSub", "Hub", "InProcessPubSub", "RedisStreamsPubSub", "connect"]

_URL_SCHEMES = ("redis://", "rediss://", "unix://")
_IN_PROCESS = "inprocess://"


class Hub(ABC):
    """The ergonomic layer over a backend: messages to iterate over, leases to hold, `async with`."""

    _log: Log

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether `close` was called."""

    @abstractmethod
    async def close(self) -> None:
        """End everything in order; idempotent."""

    @abstractmethod
    async def open_subscription(
        self, topic: str, subscriber: Subscriber, group: str | None, start_from: StartFrom
    ) -> Any:
        """Subscribe something that takes deliveries (for the layers above; applications use `subscribe`)."""

    @abstractmethod
    async def close_subscription(self, subscription: Any) -> None:
        """End what `open_subscription` returned."""

    def messages(
        self, topic: str, group: str | None = None, start_from: StartFrom = "earliest", max_in_flight: int = 64
    ) -> Messages:
        """Subscribe by iterating: `async with hub.messages(…) as messages: async for message in messages: …`.

        Args:
            topic: the topic.
            group: share the events with all who name this group; without it, see every event.
            start_from: where a new group begins; one that exists keeps its place.
            max_in_flight: how many events may be here at once: those waiting in the buffer, and in a group also those
                handed out and not settled yet.

        Raises:
            ConfigError: an argument is not usable (a topic that is not granted: when entered).
            HubClosed: after `close`.
        """
        if self.closed:
            raise HubClosed("messages")
        limit = check_max_in_flight(max_in_flight)
        if limit is None:
            raise ConfigError("max_in_flight", max_in_flight, "must be an integer of at least 1: the buffer is bounded")
        name, start = check_group(group), check_start_from(start_from)

        def stands_still() -> None:
            self._log.warning(
                "%s: all %d messages that may be in flight for group %s are handed out and none gets settled:"
                " settle each with process(), ack() or nack()",
                topic, limit, name,
            )  # fmt: skip

        queue = QueueSubscriber(limit, until_settled=name is not None, on_standstill=stands_still)

        async def subscribe() -> Any:
            return await self.open_subscription(topic, queue, name, start)

        return Messages(subscribe, self.close_subscription, queue)

    def hold_lease(
        self,
        key: str,
        *,
        ttl: float | None = None,
        wait: float | None = None,
        owner: str | None = None,
        renew_interval: float | None = None,
    ) -> AbstractAsyncContextManager[Lease]:
        """Hold a lease during a block: it renews itself, and its loss cancels the block.

        Args:
            key: the lease's key.
            ttl: seconds; by default what the policy says, else 15.
            wait: seconds to wait for it while another holds it or the server is away; None does not wait.
            owner: who we are to others; by default a name that no other holding has.
            renew_interval: seconds between renewals; by default what the policy says, else a third of the TTL.

        Raises:
            ConfigError: an argument is not usable, or not granted; nothing was sent.
            LeaseHeld: another owner holds it, and did so until the wait was over.
            LeaseUnavailable: the server could not be asked in time.
            LeaseLost: the lease was lost; the block was cancelled, or had ended without noticing.
        """
        provider = _lease.lease_provider_of(self)
        return _lease.hold_lease(provider, key, ttl=ttl, wait=wait, owner=owner, renew_interval=renew_interval)

    async def __aenter__(self) -> Self:
        if self.closed:
            raise HubClosed("async with")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class RedisStreamsPubSub(RedisBackend, Hub):
    """Durable pub/sub and leases on Redis Streams, shared with pods that use `@mastra/redis-streams`.

    Nothing is sent before the first call. Close it with `close()`, or use it as `async with`. One hub belongs to one
    event loop.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key_prefix: str = "mastra:topic",
        block_ms: int = 1_000,
        redis_options: Mapping[str, Any] | None = None,
        max_stream_length: int = 10_000,
        stream_idle_ttl_ms: int = 0,
        reclaim_interval_ms: int = 30_000,
        reclaim_idle_ms: int = 60_000,
        max_delivery_attempts: float = 5,
        in_flight_timeout_ms: int = 0,
        client: object = None,
        logger: Log | None = None,
        publish_timeout: float = 10.0,
        close_timeout: float = 10.0,
        dead_letters: bool = False,
        dead_letter_max_length: int = 10_000,
    ) -> None:
        """Describe the hub; every option is checked here.

        Args:
            url: `redis://`, `rediss://` or `unix://`; by default what `redis_options` says, else redis://localhost:6379.
            key_prefix: a topic is the stream `<key_prefix>:<topic>`, a lease the key `<key_prefix>:lease:<key>`.
            block_ms: how long one read waits for events; at most a second of it is used.
            redis_options: further options of the connection, by the names of redis-py's client.
            max_stream_length: entries kept per topic, approximately; 0 keeps all.
            stream_idle_ttl_ms: a topic expires this long after its last write; 0 is never. Reading does not refresh it.
            reclaim_interval_ms: how often to take over what consumers left unsettled; 0 is never.
            reclaim_idle_ms: how long it must have been left alone. Handlers that run longer keep theirs.
            max_delivery_attempts: deliveries of one event to a group before it is given up; 0 or math.inf is no cap.
            in_flight_timeout_ms: a handler that takes longer is nacked on its behalf; 0 is never.
            client: a redis-py client whose settings are used instead of `url`; its connections are not.
            logger: where diagnostics go, by default the logger `streamhold`.
            publish_timeout: seconds that a publish may take, reconnects included.
            close_timeout: seconds that `close` gives handlers to finish.
            dead_letters: keep what is given up in the topic's dead letters.
            dead_letter_max_length: dead letters kept per topic, approximately; 0 keeps all.

        Raises:
            ConfigError: an option is not usable; the message names it and its value.
        """
        options = {
            "key_prefix": key_prefix,
            "block_ms": block_ms,
            "redis_options": redis_options,
            "max_stream_length": max_stream_length,
            "stream_idle_ttl_ms": stream_idle_ttl_ms,
            "reclaim_interval_ms": reclaim_interval_ms,
            "reclaim_idle_ms": reclaim_idle_ms,
            "max_delivery_attempts": max_delivery_attempts,
            "in_flight_timeout_ms": in_flight_timeout_ms,
            "publish_timeout": publish_timeout,
            "close_timeout": close_timeout,
            "dead_letters": dead_letters,
            "dead_letter_max_length": dead_letter_max_length,
        }
        checked, wire = backend_from_options(url, client, logger, options)
        super().__init__(checked, wire, log=logger)

    @classmethod
    def from_binding(
        cls, folder: str | os.PathLike[str], *, logger: Log | None = None, **options: Any
    ) -> RedisStreamsPubSub:
        """A hub for a mounted binding: server, credentials, topics and leases are those that the operator granted.

        Args:
            folder: where the binding Secret is mounted.
            logger: where diagnostics go, by default the logger `streamhold`.
            options: `block_ms`, `publish_timeout`, `close_timeout`; everything else comes from the binding.

        Raises:
            BindingError: the folder is missing, incomplete or not understood.
            ConfigError: an option is not usable here.
        """
        binding = load_binding(folder)
        checked, wire = backend_from_binding(binding, logger, options)
        hub = cls.__new__(cls)
        RedisBackend.__init__(hub, checked, wire, binding=binding, log=logger)
        return hub


class InProcessPubSub(RedisBackend, Hub):
    """Pub/sub and leases in this process, without Redis: the same contract, kept in memory (C-29).

    Hubs that are given the same `InProcessServer` share its topics, groups and leases as processes share a Redis; a hub
    by itself has a server of its own. Nothing outlives the process. One server with its hubs belongs to one event loop.
    """

    def __init__(
        self,
        server: InProcessServer | None = None,
        *,
        key_prefix: str = "mastra:topic",
        max_stream_length: int = 10_000,
        stream_idle_ttl_ms: int = 0,
        reclaim_interval_ms: int = 30_000,
        reclaim_idle_ms: int = 60_000,
        max_delivery_attempts: float = 5,
        in_flight_timeout_ms: int = 0,
        logger: Log | None = None,
        close_timeout: float = 10.0,
        dead_letters: bool = False,
        dead_letter_max_length: int = 10_000,
    ) -> None:
        """Describe the hub; every option is checked here.

        Args:
            server: what it shares with other hubs; by default a new one, for it alone.
            key_prefix: hubs of one server with different prefixes do not see each other.
            max_stream_length: entries kept per topic; 0 keeps all.
            stream_idle_ttl_ms: a topic expires this long after its last write; 0 is never. Reading does not refresh it.
            reclaim_interval_ms: how often to take over what consumers left unsettled; 0 is never.
            reclaim_idle_ms: how long it must have been left alone. Handlers that run longer keep theirs.
            max_delivery_attempts: deliveries of one event to a group before it is given up; 0 or math.inf is no cap.
            in_flight_timeout_ms: a handler that takes longer is nacked on its behalf; 0 is never.
            logger: where diagnostics go, by default the logger `streamhold`.
            close_timeout: seconds that `close` gives handlers to finish.
            dead_letters: keep what is given up in the topic's dead letters.
            dead_letter_max_length: dead letters kept per topic; 0 keeps all.

        Raises:
            ConfigError: an option is not usable; the message names it and its value.
        """
        options = PubSubOptions(
            key_prefix=key_prefix,
            max_stream_length=max_stream_length,
            stream_idle_ttl_ms=stream_idle_ttl_ms,
            reclaim_interval_ms=reclaim_interval_ms,
            reclaim_idle_ms=reclaim_idle_ms,
            max_delivery_attempts=max_delivery_attempts,
            in_flight_timeout_ms=in_flight_timeout_ms,
            close_timeout=close_timeout,
            dead_letters=dead_letters,
            dead_letter_max_length=dead_letter_max_length,
        )
        check_logger(logger)
        if server is not None and not isinstance(server, InProcessServer):
            raise ConfigError("server", server, "must be an InProcessServer, or None for one of its own")
        super().__init__(options, InProcessClient(server or InProcessServer()), log=logger)

    @property
    def supported_modes(self) -> tuple[str, ...]:
        """How events reach subscribers: they may be pulled, and they are pushed within the process."""
        return ("pull", "push")


EventEmitterPubSub = InProcessPubSub
"""The in-process backend under its other name."""


@overload
def connect(target: Literal["inprocess://"], **options: Any) -> InProcessPubSub: ...


@overload
def connect(target: str | os.PathLike[str] | None = None, **options: Any) -> RedisStreamsPubSub: ...


def connect(target: str | os.PathLike[str] | None = None, **options: Any) -> RedisStreamsPubSub | InProcessPubSub:
    """Make a hub; use it as `async with streamhold.connect() as hub`. Nothing is sent before the first call.

    Args:
        target: a `redis://` URL, `inprocess://`, or the folder of a mounted binding Secret; by default the folder that
            STREAMHOLD_BINDING names, else the one of ours below SERVICE_BINDING_ROOT.
        options: with a URL all options of `RedisStreamsPubSub`, with `inprocess://` those of `InProcessPubSub`; with a
            binding `block_ms`, `publish_timeout`, `close_timeout` and `logger`.

    Raises:
        BindingError: no binding was found, or it is incomplete.
        ConfigError: the target or an option is not usable.
    """
    if target == _IN_PROCESS:
        return InProcessPubSub(**options)
    if isinstance(target, str) and "://" in target:
        if not target.startswith(_URL_SCHEMES):
            scheme = target.partition("://")[0]
            raise ConfigError(
                "target", f"{scheme}://…", f"expected one of {', '.join((*_URL_SCHEMES, _IN_PROCESS))} or a folder"
            )
        return RedisStreamsPubSub(target, **options)
    if isinstance(target, str) and "@" in target and not os.path.lexists(target):
        raise ConfigError(
            "target",
            f"…@{target.rpartition('@')[2]}",
            "no such folder; a URL is written redis://user:password@host:6379",
        )
    if target is not None and not isinstance(target, str | os.PathLike):
        raise ConfigError("target", type(target), "must be a redis:// URL, the folder of a binding, or None")
    return RedisStreamsPubSub.from_binding(find_binding() if target is None else target, **options)
