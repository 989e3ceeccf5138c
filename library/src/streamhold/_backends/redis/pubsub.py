"""Everything that talks to Redis, put together: the contract layer of `RedisStreamsPubSub` (contract B and C)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import MethodType
from typing import Any, TypeAlias

import anyio

from streamhold._backends.background import Background
from streamhold._backends.base import CallbackSubscriber, Counters, Log, Subscriber
from streamhold._backends.redis.attachment import Shared
from streamhold._backends.redis.client import RedisClient
from streamhold._backends.redis.lease import RedisLeases
from streamhold._backends.redis.place import Place
from streamhold._backends.redis.publish import Publisher
from streamhold._backends.redis.settle import Settler
from streamhold._backends.redis.subscriptions import Subscription, Subscriptions
from streamhold._backends.stamp import created_now, new_id
from streamhold._backends.store import Store
from streamhold._binding import Access, Binding
from streamhold._core.envelope import envelope
from streamhold._core.keys import check_text
from streamhold._core.lease import LeaseRules
from streamhold._core.options import (
    DEFAULT_URL,
    PubSubOptions,
    TopicSettings,
    check_group,
    check_max_in_flight,
    check_start_from,
)
from streamhold.errors import ConfigError, HubClosed, StreamholdError
from streamhold.types import Callback, LeaseGrant, StartFrom

__all__ = ["RedisBackend", "backend_from_binding", "backend_from_options", "check_logger"]

_HANDING_BACK = 3.0
_LEAVING = 2.0
_END_OF_READ = 2.0
_PLACES_KEPT = 10_000
_NOT_WITH_BINDING = PubSubOptions.names() - {"block_ms", "publish_timeout", "close_timeout"}

_CallbackKey: TypeAlias = "tuple[str, object]"


class _Registered:
    """One subscribed callback."""

    __slots__ = ("callback", "ready", "subscription")

    def __init__(self, callback: Callback) -> None:
        self.callback = callback  # keeps alive what the key identifies by its address
        self.subscription: Subscription | None = None
        self.ready = anyio.Event()


class RedisBackend:
    """Publish, subscribe and leases on one Redis."""

    counters: Counters
    """What happened to events that were not simply handled."""

    def __init__(
        self, options: PubSubOptions, client: Store, *, binding: Binding | None = None, log: Log | None = None
    ) -> None:
        self._options = options
        self._client = client
        self._binding = binding
        self._log: Log = log or logging.getLogger("streamhold")
        self.counters = Counters()
        self._background = Background(self._log)
        self._settler = Settler(client, self._background, self.counters, self._log)
        self._publisher = Publisher(client, options.publish_timeout)
        shared = Shared(self._settler, self._background, self.counters, self._log)
        self._subscriptions = Subscriptions(client, shared, options.block_ms)
        if binding is None:
            self._leases = RedisLeases.for_prefix(client, options.key_prefix)
        else:
            self._leases = RedisLeases.for_binding(client, binding)
        self._places: dict[tuple[str, Access], Place] = {}
        self._callbacks: dict[_CallbackKey, _Registered] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop of the first call; the hub works in no other."""
        self._closed = False
        self._closing: asyncio.Future[None] | None = None

    @property
    def supported_modes(self) -> tuple[str, ...]:
        """How events reach subscribers: they are pulled from the stream."""
        return ("pull",)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # ---- publish ----

    async def publish(self, topic: str, event: Mapping[str, Any], local_only: bool = False) -> None:
        """Publish one event: one durable write, trimmed and expiring as the topic is set up.

        Args:
            topic: the topic.
            event: its members: `type`, `data`, `runId`, and any others. `id` and `createdAt` are set by the library.
            local_only: do not write it: give it to the subscribers of this process, each with the same `data` object.

        Raises:
            ConfigError: the topic or the event is not usable, or not granted; nothing was sent.
            PublishOutcomeUnknown: the reply was lost: it may or may not be published.
            PublishError: it was not published; `__cause__` says why (`BackendUnavailable`, `ServerFull`, …).
            HubClosed: after `close`.
        """
        self._must_be_open("publish")
        place = self._place(topic, "Publish")
        if local_only:
            self._subscriptions.publish_locally(place, envelope(event, new_id(), created_now()))
            return
        await self._publisher.publish(place, event)
        if place.settings.idle_ttl_ms:
            self._subscriptions.written(place)

    async def flush(self) -> None:
        """Wait for the publishes in flight, whatever becomes of them; their callers get the outcome."""
        await self._publisher.flush()

    # ---- subscribe ----

    async def subscribe(
        self,
        topic: str,
        callback: Callback,
        group: str | None = None,
        start_from: StartFrom = "earliest",
        batch: object = None,
        *,
        max_in_flight: int | None = None,
    ) -> None:
        """Call back for each event of a topic. The same callback on the same topic twice is a no-op.

        Args:
            topic: the topic.
            callback: called with `(event, ack, nack)`; an async function here, a plain one in a worker thread. An
                exception is a nack. One that returns without either leaves the event pending.
            group: share the events with all who name this group; without it, see every event.
            start_from: where a new group begins; one that exists keeps its place.
            batch: not supported yet.
            max_in_flight: how many handlers may run at once; None for any number.

        Raises:
            ConfigError: an argument is not usable, or not granted; nothing was sent.
            BackendError: the server refused, or could not be asked.
            HubClosed: after `close`.
        """
        self._must_be_open("subscribe")
        if not callable(callback):
            raise ConfigError("callback", callback, "must be callable with (event, ack, nack)")
        if batch is not None:
            raise ConfigError("batch", batch, "batching is not supported by this version; leave it out")
        limit = check_max_in_flight(max_in_flight)
        check_group(group)
        check_start_from(start_from)
        self._place(topic, "Consume")
        key = _key_of(topic, callback)
        registered = self._callbacks.get(key)
        if registered is not None:
            await registered.ready.wait()
            return
        registered = self._callbacks[key] = _Registered(callback)
        subscriber = CallbackSubscriber(callback, limit, self._log)
        try:
            registered.subscription = await self.open_subscription(topic, subscriber, group, start_from)
        except BaseException:
            if self._callbacks.get(key) is registered:
                del self._callbacks[key]
            raise
        finally:
            registered.ready.set()

    async def unsubscribe(self, topic: str, callback: Callback) -> None:
        """End a subscription; an unknown one is a no-op.

        What was not begun goes back to the group; handlers that run go on and may still settle.

        Raises:
            BackendError: never for what the server answers; the log tells.
        """
        registered = self._callbacks.pop(_key_of(topic, callback), None)
        if registered is None:
            return
        # Seen through even if the caller is cancelled: nobody could end the subscription any more.
        await asyncio.shield(self._background.spawn(self._end(registered)))

    async def _end(self, registered: _Registered) -> None:
        await registered.ready.wait()  # one that is still being made is torn down when it is there
        if registered.subscription is not None:
            await self.close_subscription(registered.subscription)

    async def clear_topic(self, topic: str) -> None:
        """Delete a topic's stream with its groups. Never raises: what fails is a warning in the log.

        Attached subscribers go on with the new stream, from its beginning. Dead letters stay.
        """
        try:
            self._must_be_open("clear_topic")
            place = self._place(topic, "Manage")
            self._subscriptions.cleared(place)
            await self._client.execute("DEL", place.key, idempotent=True)
            self._subscriptions.cleared(place)  # once more: a read may have come back in between
        except ConfigError as error:  # it names the topic, whatever that is
            self._log.warning("clearing a topic failed: %s", error)
        except StreamholdError as error:
            self._log.warning("%s: clearing the topic failed: %s", topic, error)

    # ---- leases ----

    async def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> LeaseGrant:
        """Take a free lease, or refresh one's own.

        Raises:
            ConfigError: an argument is not usable, or not granted; nothing was sent.
            LeaseUnavailable: the server could not be asked in time.
            BackendError: the server refused.
            HubClosed: after `close`.
        """
        return await self._open_leases("acquire_lease").acquire_lease(key, owner, ttl_ms)

    async def get_lease_owner(self, key: str) -> str | None:
        """Return who holds a lease, None when nobody does.

        Raises:
            ConfigError: the key is not usable, or not granted.
            LeaseUnavailable: the server could not be asked in time.
            BackendError: the server refused.
            HubClosed: after `close`.
        """
        return await self._open_leases("get_lease_owner").get_lease_owner(key)

    async def release_lease(self, key: str, owner: str, *, token: int | None = None) -> None:
        """Free a lease if `owner` holds it (with `token`: this very holding); else do nothing.

        Raises:
            ConfigError: an argument is not usable, or not granted; nothing was sent.
            LeaseUnavailable: the server could not be asked in time.
            BackendError: the server refused.
            HubClosed: after `close`.
        """
        await self._open_leases("release_lease").release_lease(key, owner, token=token)

    async def renew_lease(self, key: str, owner: str, ttl_ms: int, *, token: int | None = None) -> bool:
        """Refresh a lease (with `token`: this very holding); False when `owner` does not hold it any more.

        Raises:
            ConfigError: an argument is not usable, or not granted; nothing was sent.
            LeaseUnavailable: the server could not be asked in time.
            BackendError: the server refused.
            HubClosed: after `close`.
        """
        return await self._open_leases("renew_lease").renew_lease(key, owner, ttl_ms, token=token)

    async def transfer_lease(
        self, key: str, from_owner: str, to_owner: str, ttl_ms: int, *, token: int | None = None
    ) -> bool:
        """Hand a lease over in one step; False when `from_owner` does not hold it any more.

        Raises:
            ConfigError: an argument is not usable, or not granted; nothing was sent.
            LeaseUnavailable: the server could not be asked in time: either of the two may hold it.
            BackendError: the server refused.
            HubClosed: after `close`.
        """
        leases = self._open_leases("transfer_lease")
        return await leases.transfer_lease(key, from_owner, to_owner, ttl_ms, token=token)

    def lease_rules(self, key: str) -> LeaseRules:
        """The rules that hold for a lease: what the binding's policy says, else the defaults.

        Raises:
            ConfigError: the key is not usable, or not granted.
        """
        return self._leases.lease_rules(key)

    def _open_leases(self, call: str) -> RedisLeases:
        self._must_be_open(call)
        return self._leases

    def _must_be_open(self, call: str) -> None:
        if self._closed:
            raise HubClosed(call)
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                # Checked before anything is sent: a reply that comes to another loop can be told to nobody.
                raise RuntimeError(
                    f"{call}: the hub belongs to the event loop that used it first; make one for each loop"
                )
            self._loop = loop

    # ---- close ----

    async def close(self) -> None:
        """End everything in order; idempotent, and it ends while the server is down.

        A handler may call it too; while somebody else closes the hub already, that returns at once.

        Reading stops; what is buffered goes back to its group at once; handlers have `close_timeout` seconds to
        finish, then they are cancelled and their events go back too. Accepted publishes are waited for. Private groups
        and consumers without pending entries are removed, then all connections are closed.
        """
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise RuntimeError("close: the hub belongs to the event loop that used it first; close it there")
        self._closed = True
        if self._closing is not None:
            # A handler is waited for by whoever closes: it must not wait for that in turn.
            if not self._subscriptions.handles(asyncio.current_task()):
                await asyncio.shield(self._closing)
            return
        self._closing = asyncio.get_running_loop().create_future()
        try:
            # Shielded: a cancellation from outside must not keep events from being handed back. Every step is bounded.
            with anyio.CancelScope(shield=True):
                await self._close()
        finally:
            self._closing.set_result(None)

    async def _close(self) -> None:
        await self._subscriptions.stop_reading(_END_OF_READ)
        deadline = anyio.current_time() + self._options.close_timeout
        if not await self._subscriptions.wait_for_handlers(self._options.close_timeout):
            self._log.warning(
                "close: not settled within %g s, so handed back: %s",
                self._options.close_timeout, "; ".join(self._subscriptions.unsettled()),
            )  # fmt: skip
            self._subscriptions.abandon_handlers()
            await anyio.lowlevel.checkpoint()  # each hands its own event back
        left = self._subscriptions.hand_back()
        if left:
            self._log.info("close: %d deliveries handed back", left)
        with anyio.move_on_after(max(0.1, deadline - anyio.current_time())):
            await self._publisher.flush()
        if not await self._background.settle(_HANDING_BACK):
            await self._background.cancel()
        with anyio.move_on_after(_LEAVING):
            await self._subscriptions.leave_groups()
        await self._client.aclose()
        await self._background.cancel()

    # ---- inside ----

    async def open_subscription(
        self, topic: str, subscriber: Subscriber, group: str | None, start_from: StartFrom
    ) -> Subscription:
        """Subscribe something that takes deliveries (for the layers above; applications use `subscribe`)."""
        self._must_be_open("subscribe")
        place = self._place(topic, "Consume")
        name, start = check_group(group), check_start_from(start_from)
        # Seen through and undone if the caller is cancelled: cut off, it would leave a group or half a subscription.
        opening = self._background.spawn(self._opened(place, subscriber, name, start))
        try:
            subscription = await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._background.spawn(self._undo(opening))
            raise
        if isinstance(subscription, Exception):
            raise subscription
        try:
            self._must_be_open("subscribe")
        except HubClosed:
            await self._subscriptions.close(subscription)
            raise
        return subscription

    async def _opened(
        self, place: Place, subscriber: Subscriber, group: str | None, start_from: StartFrom
    ) -> Subscription | Exception:
        try:
            return await self._subscriptions.open(place, subscriber, group, start_from)
        except Exception as error:
            return error  # for the caller, if there is one still

    async def _undo(self, opening: asyncio.Task[Subscription | Exception]) -> None:
        subscription = await opening
        if isinstance(subscription, Subscription):
            await self.close_subscription(subscription)

    async def close_subscription(self, subscription: Subscription) -> None:
        """End what `open_subscription` returned; nothing is left to do after `close`."""
        if not self._closed:
            await self._subscriptions.close(subscription)

    def _place(self, topic: str, access: Access) -> Place:
        """Resolve and check a topic once."""
        place = self._places.get((topic, access)) if type(topic) is str else None
        if place is None:
            check_text("topic", topic)
            place = self._resolve(topic, access)
            if len(self._places) >= _PLACES_KEPT:  # topics made at run time: start over rather than grow for ever
                self._places.clear()
            self._places[topic, access] = place
        return place

    def _resolve(self, topic: str, access: Access) -> Place:
        if self._binding is None:
            return Place.of(topic, self._options.key_prefix, topic, self._options.settings)
        grant = self._binding.topic(topic, access)
        settings = TopicSettings(
            max_length=grant.max_length,
            idle_ttl_ms=grant.idle_ttl_ms,
            reclaim_interval_ms=grant.reclaim_interval_ms,
            reclaim_idle_ms=max(1, grant.reclaim_min_idle_ms),
            max_attempts=grant.max_delivery_attempts,
            in_flight_timeout_ms=grant.in_flight_timeout_ms,
            dead_letters=grant.dead_letter.enabled,
            dead_letter_max_length=grant.dead_letter.max_length,
        )
        return Place.of(topic, grant.prefix, grant.topic, settings)


def _key_of(topic: str, callback: Callback) -> _CallbackKey:
    """What makes a subscription the same: a bound method is a new object each time it is looked up."""
    if isinstance(callback, MethodType):
        return topic, (id(callback.__self__), callback.__func__)
    return topic, id(callback)


def backend_from_options(
    url: str | None,
    client: object,
    logger: Log | None,
    options: Mapping[str, Any],
) -> tuple[PubSubOptions, RedisClient]:
    """Check the constructor's options and make the client.

    Raises:
        ConfigError: an option is not usable.
    """
    checked = PubSubOptions(**options)
    check_logger(logger)
    settings = dict(checked.redis_options or {})
    if client is not None:
        if url is not None or settings:
            raise ConfigError("client", client, "is one connection source, url or redis_options another: give one")
        return checked, RedisClient.from_redis_py(client)
    target: object = url if url is not None else settings.get("url") or DEFAULT_URL
    if not isinstance(target, str):
        # Its type only: even what is not usable may hold a password.
        raise ConfigError("url", type(target), "must be a string such as redis://localhost:6379")
    settings.pop("url", None)
    return checked, RedisClient.from_url(target, options=settings)


def backend_from_binding(
    binding: Binding, logger: Log | None, options: Mapping[str, Any]
) -> tuple[PubSubOptions, RedisClient]:
    """Check the options that may be given beside a binding and make the client.

    Raises:
        ConfigError: an option is not usable, or the binding says it.
    """
    for option in options:
        if option in _NOT_WITH_BINDING:
            raise ConfigError(option, options[option], "comes from the binding; change it in the custom resources")
        if option not in PubSubOptions.names():
            raise ConfigError(option, options[option], "no such option")
    check_logger(logger)
    return PubSubOptions(**options), RedisClient.from_binding(binding)


def check_logger(logger: object) -> None:
    """Refuse what cannot be logged to.

    Raises:
        ConfigError: it lacks the methods of a logger.
    """
    if logger is not None and not all(
        callable(getattr(logger, name, None)) for name in ("debug", "info", "warning", "error")
    ):
        raise ConfigError("logger", logger, "must be a logging.Logger or have its methods debug, info, warning, error")
