"""Messages: the iterator form of a subscription."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import anyio

from streamhold._backends.base import Delivery, QueueSubscriber
from streamhold.errors import HubClosed
from streamhold.types import Event

__all__ = ["Message", "Messages"]


class Message:
    """One delivery of one event."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        """Made by `Messages`."""
        self._delivery = delivery

    @property
    def event(self) -> Event:
        """The event as it was read; changing it changes nothing that is delivered again."""
        return self._delivery.event

    @property
    def topic(self) -> str:
        """The topic, as the subscription called it."""
        return self._delivery.topic

    @property
    def attempt(self) -> int:
        """Which delivery of this event this is, from 1: nacks count, and so do consumers that died with it."""
        return self._delivery.attempt

    @property
    def id(self) -> str:
        """The event's id: the same in every delivery; empty if its writer gave it none."""
        own = self._delivery.event.get("id")
        return own if isinstance(own, str) else ""

    @property
    def entry_id(self) -> str:
        """Where it is in the stream; another one after a nack, empty for a local event."""
        return self._delivery.entry_id.decode()

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.topic!r}, attempt {self.attempt}>"

    def ack(self) -> Awaitable[None]:
        """Settle it as handled. Calling is enough; awaiting waits for the server.

        Raises:
            StreamholdError: when awaited: it failed and may be called again.
        """
        return self._delivery.ack()

    def nack(self, reason: str = "nacked by the handler") -> Awaitable[None]:
        """Settle it as not handled: delivered again to this group, or given up at the cap. Calling is enough.

        Args:
            reason: what the dead letters will say, if it ends there.

        Raises:
            StreamholdError: when awaited: it failed and may be called again.
        """
        return self._delivery.nack(reason)

    def extend(self) -> Awaitable[None]:
        """Say that it is still being worked on: the clocks that would take it away start again.

        Raises:
            StreamholdError: when awaited: the server could not be told.
        """
        return self._delivery.extend()

    def process(self) -> Processing:
        """Settle it by how a block ends: ack on success, nack on an exception, back to the group when cancelled.

        The block's exception goes on unchanged. Acks are sent together and not waited for: one that is lost means that
        the event comes again.
        """
        return Processing(self._delivery)


class Processing:
    """The block of `Message.process`."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        """Made by `Message.process`."""
        self._delivery = delivery

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._delivery.ack()
        elif not isinstance(error, Exception) or (isinstance(error, HubClosed) and self._delivery.subscriber.closing):
            self._delivery.hand_back()  # the process is ending, which is no fault of the event's
        else:
            self._delivery.nack(f"{type(error).__name__}: {error}")


class Messages:
    """A subscription to iterate over, inside `async with`. Ends when the hub is closed."""

    def __init__(
        self,
        subscribe: Callable[[], Awaitable[Any]],
        unsubscribe: Callable[[Any], Awaitable[None]],
        queue: QueueSubscriber,
    ) -> None:
        """Made by `messages()`."""
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._queue = queue
        self._subscription: Any = None

    async def __aenter__(self) -> Self:
        if self._subscription is not None:
            raise RuntimeError("messages(): this subscription is open already; call messages() for another")
        self._subscription = await self._subscribe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subscription, self._subscription = self._subscription, None
        # Shielded: a cancelled consumer still hands back what it did not begin. Bounded by the server's deadlines.
        with anyio.CancelScope(shield=True):
            await self._unsubscribe(subscription)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        delivery = await self._next()
        if delivery is None:
            raise StopAsyncIteration
        return Message(delivery)

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message.

        Args:
            timeout: seconds to wait; None waits as long as it takes.

        Raises:
            TimeoutError: none came in time.
            HubClosed: there will be none.
        """
        with anyio.fail_after(timeout):
            delivery = await self._next()
        if delivery is None:
            raise HubClosed("messages().next")
        return Message(delivery)

    async def _next(self) -> Delivery | None:
        if self._subscription is None:
            raise RuntimeError("messages() must be entered first: async with hub.messages(…) as messages")
        return await self._queue.next()
