"""All subscriptions of one hub: which topics are attached to which group, and how they end (C-12, C-23, C-24).

Group names share readers: one for each group that somebody named, one for all private groups of this process.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from streamhold._backends.base import Delivery, Outcome, Subscriber
from streamhold._backends.redis.attachment import Attachment, FanOutAttachment, GroupAttachment, Member, Shared
from streamhold._backends.redis.group import open_group
from streamhold._backends.redis.place import Place
from streamhold._backends.redis.read import GroupReader
from streamhold._backends.redis.reclaim import Sweeper
from streamhold._backends.store import Store
from streamhold._core.delivery import State, entry_order
from streamhold.errors import BackendError, StreamholdError
from streamhold.types import Event, StartFrom

__all__ = ["Subscription", "Subscriptions"]

_REPLAY_PAGE = 500


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscriber of one topic."""

    reader: GroupReader
    attachment: Attachment
    member: Member


class Subscriptions:
    """What one hub is subscribed to."""

    def __init__(self, client: Store, shared: Shared, block_ms: int) -> None:
        self._client = client
        self._shared = shared
        self._block_ms = block_ms
        self._private_group = f"__fanout-{uuid.uuid4()}"
        self._readers: dict[str, GroupReader] = {}
        self._sweeper = Sweeper(client, shared)
        self._leaving: set[GroupAttachment] = set()
        self._locks: dict[tuple[str, str], tuple[anyio.Lock, int]] = {}

    async def open(
        self, place: Place, subscriber: Subscriber, group: str | None, start_from: StartFrom
    ) -> Subscription:
        """Subscribe; returns when the group is there, so that what is published from now on is delivered.

        Raises:
            BackendError: the server refused.
        """
        name = group or self._private_group
        async with self._alone(name, place.key):
            reader = self._readers.get(name)
            if reader is None:
                reader = GroupReader(self._client, name, _consumer_name(name), self._block_ms, self._shared)
                self._readers[name] = reader
            member = Member(subscriber)
            try:
                attachment = reader.attachments.get(place.key.encode())
                if attachment is None:
                    attachment = await self._attach(reader, place, member, group is None, start_from)
                else:
                    await self._join(attachment, member, start_from)
            except BaseException:
                await self._discard_if_unused(reader)
                raise
            return Subscription(reader, attachment, member)

    async def close(self, subscription: Subscription) -> None:
        """End a subscription: what was not begun goes back, what runs goes on and may still be settled."""
        reader, attachment = subscription.reader, subscription.attachment
        async with self._alone(reader.group, attachment.place.key):
            attachment.part(subscription.member)
            if attachment.members or reader.attachments.get(attachment.key) is not attachment:
                return
            await reader.remove(attachment)
            self._end(attachment)
            await self._discard_if_unused(reader)
            if isinstance(attachment, FanOutAttachment):
                await self._destroy(attachment)

    def publish_locally(self, place: Place, event: Event) -> None:
        """Give an event to every subscriber of this process, each with an outer object of its own (C-10)."""
        for reader in self._readers.values():
            attachment = reader.attachments.get(place.key.encode())
            for member in list(attachment.members) if attachment is not None else ():
                delivery = Delivery(place.topic, dict(event), event["deliveryAttempt"], _LOCAL, member.subscriber)
                member.subscriber.deliver(delivery)

    def written(self, place: Place) -> None:
        """This process wrote to a topic."""
        for reader in self._readers.values():
            reader.written(place.key.encode())

    def cleared(self, place: Place) -> None:
        """This process deleted a topic: read the new stream from its beginning."""
        for reader in self._readers.values():
            attachment = reader.attachments.get(place.key.encode())
            if attachment is not None:
                attachment.restart()

    # ---- the end of all ----

    async def stop_reading(self, timeout: float) -> None:
        """Read and reclaim nothing more; what was buffered goes back."""
        for subscriber in self._subscribers():
            subscriber.closing = True
        self._sweeper.stop()
        async with anyio.create_task_group() as stopping:
            for reader in self._readers.values():
                stopping.start_soon(reader.stop, timeout)
        for attachment in self._attachments():
            for member in attachment.members:
                for delivery in member.subscriber.end():
                    delivery.hand_back()

    async def wait_for_handlers(self, timeout: float) -> bool:
        """Wait until no handler has a delivery; False when the time was not enough."""
        with anyio.move_on_after(timeout):
            for subscriber in self._subscribers():
                await subscriber.idle()
            return True
        return False

    def unsettled(self) -> list[str]:
        """Where handlers have deliveries, or messages were handed out: topic and group, for the log."""
        return sorted(
            {
                f"{attachment.place.topic} (group {attachment.group})"
                for attachment in {*self._attachments(), *self._leaving}
                if any(member.subscriber.busy() for member in attachment.members)
            }
        )

    def handles(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task runs one of the handlers."""
        return any(subscriber.runs(task) for subscriber in self._subscribers())

    def abandon_handlers(self) -> None:
        """Cancel the handlers that still run."""
        for subscriber in self._subscribers():
            subscriber.abandon()

    def hand_back(self) -> int:
        """Give back all that is not settled."""
        left = [
            delivery
            for attachment in {*self._attachments(), *self._leaving}
            if isinstance(attachment, GroupAttachment)
            for delivery in attachment.in_flight.values()
            if delivery.state is State.OPEN
        ]
        for delivery in left:
            self._shared.settler.end(delivery)
        return len(left)

    async def leave_groups(self) -> None:
        """Remove our consumers where nothing is pending, and our private groups."""
        attachments = {*self._attachments(), *self._leaving}
        for attachment in attachments:
            attachment.stop()
        async with anyio.create_task_group() as leaving:
            for attachment in attachments:
                if isinstance(attachment, GroupAttachment):
                    leaving.start_soon(self._leave, attachment)
                else:
                    leaving.start_soon(self._destroy, attachment)
        self._readers.clear()

    def _subscribers(self) -> list[Subscriber]:
        attachments = {*self._attachments(), *self._leaving}
        return [one.subscriber for attachment in attachments for one in (*attachment.members, *attachment.parted)]

    def _attachments(self) -> list[Attachment]:
        return [attachment for reader in self._readers.values() for attachment in reader.attachments.values()]

    # ---- beginning ----

    async def _attach(
        self, reader: GroupReader, place: Place, member: Member, private: bool, start_from: StartFrom
    ) -> Attachment:
        kind = FanOutAttachment if private else GroupAttachment
        attachment = kind(place, reader.group, reader.consumer, self._shared)
        start = "0-0" if start_from == "earliest" else "$"
        _, attachment.position = await open_group(self._client, attachment, start, make_stream=True)
        attachment.join(member)
        member.subscriber.on_room = lambda: reader.room_made(attachment)
        reader.add(attachment)
        if isinstance(attachment, GroupAttachment):
            self._sweeper.add(attachment)
        return attachment

    async def _join(self, attachment: Attachment, member: Member, start_from: StartFrom) -> None:
        """Add a subscriber to a topic that is read already."""
        reader = self._readers[attachment.group]
        member.subscriber.on_room = lambda: reader.room_made(attachment)
        if not isinstance(attachment, FanOutAttachment):
            attachment.join(member)
            reader.poke()
        elif start_from == "latest":
            member.floor = entry_order(await self._last_entry(attachment))
            attachment.join(member)
        else:
            await self._replay(attachment, member)

    async def _last_entry(self, attachment: Attachment) -> bytes:
        try:
            told = await self._client.execute("XINFO", "STREAM", attachment.key, idempotent=True)
        except BackendError as error:
            if error.code == "ERR":  # there is no stream now
                return b"0-0"
            raise
        last: bytes = told[told.index(b"last-generated-id") + 1]
        return last

    async def _replay(self, attachment: FanOutAttachment, member: Member) -> None:
        """Give a new subscriber what was read before it came, then what came meanwhile: each once, in order."""
        until = attachment.position
        member.floor = entry_order(until)
        member.held_up = []
        attachment.join(member)
        try:
            start = b"-"
            while True:
                page = await self._client.execute(
                    "XRANGE", attachment.key, start, until, "COUNT", _REPLAY_PAGE, idempotent=True
                )
                attachment.replay(member, page)
                if len(page) < _REPLAY_PAGE:
                    break
                start = b"(" + page[-1][0]
        except BaseException:
            attachment.members.remove(member)
            raise
        attachment.replayed(member)

    # ---- ending ----

    def _end(self, attachment: Attachment) -> None:
        if isinstance(attachment, GroupAttachment):
            self._sweeper.remove(attachment)
            self._leaving.add(attachment)
            self._shared.background.spawn(self._leave_when_settled(attachment))
        else:
            attachment.stop()

    async def _leave_when_settled(self, attachment: GroupAttachment) -> None:
        """Handlers that still run are kept from being taken over, then the consumer goes."""
        await attachment.all_settled()
        attachment.stop()
        await self._leave(attachment)
        self._leaving.discard(attachment)

    async def _leave(self, attachment: GroupAttachment) -> None:
        try:
            await self._shared.settler.leave(attachment)
        except StreamholdError as error:
            if not isinstance(error, BackendError) or error.code != "NOGROUP":
                self._shared.log.info("%s: consumer not removed: %s", attachment.place.topic, error)

    async def _destroy(self, attachment: Attachment) -> None:
        try:
            await self._client.execute("XGROUP", "DESTROY", attachment.key, attachment.group, idempotent=True)
        except StreamholdError as error:
            if not isinstance(error, BackendError) or error.code != "ERR":  # there is no stream any more
                self._shared.log.warning("%s: private group not removed: %s", attachment.place.topic, error)

    async def _discard_if_unused(self, reader: GroupReader) -> None:
        if reader.attachments or self._in_use(reader.group) > 1:
            return
        if self._readers.get(reader.group) is reader:
            del self._readers[reader.group]
        await reader.stop(5.0)

    # ---- one at a time ----

    def _in_use(self, group: str) -> int:
        return sum(users for (name, _), (_, users) in self._locks.items() if name == group)

    @asynccontextmanager
    async def _alone(self, group: str, key: str) -> AsyncIterator[None]:
        """Begin and end subscriptions of one topic and group one after the other."""
        lock, users = self._locks.get((group, key), (anyio.Lock(), 0))
        self._locks[group, key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[group, key]
            if users == 1:
                del self._locks[group, key]
            else:
                self._locks[group, key] = lock, users - 1


def _consumer_name(group: str) -> str:
    """Return a unique name that tells a person where it runs: XINFO CONSUMERS shows the pod and the process."""
    return f"{group}-{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"


class _Local:
    """The source of local events: nothing to settle anywhere."""

    def ack(self, delivery: Delivery) -> Outcome:
        delivery.finish()
        return Outcome.nothing()

    def nack(self, delivery: Delivery, reason: str) -> Outcome:
        return self.ack(delivery)

    def hand_back(self, delivery: Delivery) -> Outcome:
        return self.ack(delivery)

    def extend(self, delivery: Delivery) -> Outcome:
        return Outcome.nothing()

    def started(self, delivery: Delivery) -> None:
        """Nobody counts the time."""


_LOCAL = _Local()
