"""One topic as one group of this process reads it: takes entries, makes deliveries of them (C-3, C-6, C-12, C-16).

`GroupAttachment` shares a consumer group with other processes: an entry goes to one subscriber and stays pending until
it is settled. `FanOutAttachment` has a private group: an entry goes to every subscriber and is acknowledged when it
arrives, since nobody else could ever take it over; a nack redelivers within this process. So nothing piles up at the
server, and a nack reaches the one callback that gave it (C-12, C-26).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio

from streamhold._backends.background import Background
from streamhold._backends.base import UNLIMITED, Counters, Delivery, Log, OnRoom, Outcome, Subscriber
from streamhold._backends.redis.keep import Keeper
from streamhold._backends.redis.place import Place
from streamhold._backends.redis.settle import Settler
from streamhold._backends.stamp import created_now
from streamhold._core.backoff import Backoff
from streamhold._core.delivery import GivenUp, entry_order, may_retry, read_fields
from streamhold._core.envelope import attempt_of, decode
from streamhold.types import Event

__all__ = ["Attachment", "Entries", "FanOutAttachment", "GroupAttachment", "Member", "Shared"]

Entries: TypeAlias = "Sequence[tuple[bytes, list[bytes] | None]]"
"""Id and fields of entries as the server lists them; None for the fields of one that was trimmed."""

NOTHING_SEEN = b"0-0"
_AT_ONCE = 5
"""Redeliveries within this process that come at once; without a cap, later ones would be a hot loop."""
_AGAIN = Backoff(first=0.02, limit=2.0)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the parts of one hub share."""

    settler: Settler
    background: Background
    counters: Counters
    log: Log


@dataclass(slots=True, eq=False)
class Member:
    """A subscriber of an attachment."""

    subscriber: Subscriber
    floor: tuple[int, int] = (0, 0)
    """Fan-out: entries up to this one are not for it."""
    held_up: list[Delivery] | None = None
    """Fan-out: what arrives while the past is replayed to it; None when that is done."""


class Attachment:
    """What group and fan-out attachments have in common."""

    def __init__(self, place: Place, group: str, consumer: str, shared: Shared) -> None:
        self.place = place
        self.key = place.key.encode()
        self.group = group
        self.consumer = consumer
        self.shared = shared
        self.members: list[Member] = []
        self.parted: list[Member] = []
        """Those that left while their handlers ran."""
        self.position = NOTHING_SEEN
        """The entry after which the group reads on, as far as known here: where it is made anew if it gets lost."""
        self.retry_at = 0.0
        """Not read before this moment (on the loop's clock)."""
        self.failures = 0
        self.dormant = False
        """The stream expired: wait until somebody writes (C-11)."""
        self.entry_bytes = 0
        """How large its entries are, about."""
        self.starved = False
        """Left out of the read under way because nobody had room."""

    def join(self, member: Member) -> None:
        """Add a subscriber."""
        self.members.append(member)

    def part(self, member: Member) -> None:
        """Remove a subscriber; what it has not begun goes back."""
        if member in self.members:
            self.members.remove(member)
            self.parted = [one for one in (*self.parted, member) if one.subscriber.busy()]
        for delivery in member.subscriber.end():
            delivery.hand_back()

    def restart(self) -> None:
        """The stream was deleted: the next one is read from its beginning."""
        self.position = NOTHING_SEEN
        for member in self.members:
            member.floor = (0, 0)

    def room(self) -> int:
        """How many entries may be read for it now."""
        raise NotImplementedError

    def capacity(self) -> int:
        """Its room when nothing is in flight."""
        raise NotImplementedError

    def take(self, entries: Entries) -> None:
        """Deliver entries that were just read, in order."""
        raise NotImplementedError

    def settled(self, delivery: Delivery) -> None:
        """A delivery's end is recorded at the server."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop timers."""
        raise NotImplementedError

    def count_trimmed(self, entry_id: bytes) -> None:
        """Forget an entry that was trimmed before it was handled (C-19)."""
        self.shared.counters.trimmed += 1
        self.shared.settler.ack_unseen(self, [entry_id])


class GroupAttachment(Attachment):
    """One topic as a consumer of a shared group reads it; the source of its deliveries."""

    def __init__(self, place: Place, group: str, consumer: str, shared: Shared) -> None:
        super().__init__(place, group, consumer, shared)
        self.in_flight: dict[bytes, Delivery] = {}
        self._all_settled: anyio.Event | None = None
        self._marker = group.encode()
        self._turn = 0
        self._keeper = Keeper(self.in_flight, place.settings, shared, hold=self._hold)

    def room(self) -> int:
        """The room of all subscribers together."""
        return sum(max(0, member.subscriber.room()) for member in self.members)

    def capacity(self) -> int:
        """The limits of all subscribers together."""
        return sum(member.subscriber.limit for member in self.members)

    def take(self, entries: Entries) -> None:
        """Deliver each entry to one of the subscribers."""
        for entry_id, fields in entries:
            self.take_one(entry_id, fields, 0)
        if entries:
            self.position = entries[-1][0]

    def take_one(self, entry_id: bytes, fields: list[bytes] | None, more_attempts: int) -> None:
        """Deliver one entry.

        Args:
            entry_id: its id.
            fields: what it holds; None when it was trimmed.
            more_attempts: deliveries to consumers that died, which the event itself does not know of.
        """
        if entry_id in self.in_flight:
            return  # a second look at what a lost reply held finds what a sweep has claimed meanwhile
        if fields is None:
            self.count_trimmed(entry_id)
            return
        raw, marker = read_fields(fields)
        if marker is not None and marker != self._marker:
            self.shared.settler.ack_unseen(self, [entry_id])  # another group's retry
            return
        event = decode(raw) if raw is not None else None
        if event is None:
            self._refuse(entry_id, fields, "no event field" if raw is None else "not a JSON object")
            return
        attempt = event["deliveryAttempt"] = attempt_of(event) + more_attempts
        if more_attempts and not may_retry(attempt - 1, self.place.settings.max_attempts):
            self._give_up(entry_id, fields, attempt - 1, "left unsettled by every consumer that had it")
            return
        member = self._next_member()
        subscriber = member.subscriber if member is not None else _NOBODY
        delivery = Delivery(self.place.topic, event, attempt, self, subscriber, entry_id, fields)
        self.in_flight[entry_id] = delivery
        self._keeper.taken()
        if member is None:
            delivery.hand_back()
            return
        try:
            subscriber.deliver(delivery)
        except BaseException:
            del self.in_flight[entry_id]  # nobody has it: the reader will find it pending
            raise

    def _next_member(self) -> Member | None:
        members = self.members
        if len(members) <= 1:
            return members[0] if members else None
        self._turn += 1
        at = self._turn % len(members)
        return max(members[at:] + members[:at], key=lambda member: member.subscriber.room())

    def _refuse(self, entry_id: bytes, fields: list[bytes], problem: str) -> None:
        self.shared.counters.invalid += 1
        self.shared.log.warning("%s: entry %s is no event: %s", self.place.topic, entry_id.decode(), problem)
        if self.place.settings.dead_letters:
            self._give_up(entry_id, fields, 1, problem)
        else:
            self.shared.settler.ack_unseen(self, [entry_id])

    def _give_up(self, entry_id: bytes, fields: list[bytes], attempts: int, reason: str) -> None:
        why = GivenUp(reason, self.group, attempts, created_now())
        self.shared.log.warning(
            "%s: entry %s given up in group %s after %d attempts: %s",
            self.place.topic, entry_id.decode(), self.group, attempts, reason,
        )  # fmt: skip
        self.shared.background.spawn(self.shared.settler.give_up(self, entry_id, fields, why))

    # ---- source of deliveries ----

    def ack(self, delivery: Delivery) -> Outcome:
        """Acknowledge it, with all others of this turn."""
        return self.shared.settler.ack(self, delivery)

    def nack(self, delivery: Delivery, reason: str) -> Outcome:
        """Write it once more for this group, or give it up at the cap."""
        return self.shared.settler.nack(self, delivery, reason)

    def hand_back(self, delivery: Delivery) -> Outcome:
        """Write it once more for this group as it is."""
        return self.shared.settler.hand_back(self, delivery)

    def extend(self, delivery: Delivery) -> Outcome:
        """Reset its idle time at the server and its time here."""
        return self._keeper.extend(delivery)

    def started(self, delivery: Delivery) -> None:
        """Watch how long it takes."""
        self._keeper.started(delivery)

    def settled(self, delivery: Delivery) -> None:
        """Forget it."""
        delivery.finish()
        if self.in_flight.get(delivery.entry_id) is delivery:
            del self.in_flight[delivery.entry_id]
            if not self.in_flight and self._all_settled is not None:
                self._all_settled.set()

    async def all_settled(self) -> None:
        """Wait until nothing is in flight."""
        while self.in_flight:
            self._all_settled = anyio.Event()
            await self._all_settled.wait()

    def stop(self) -> None:
        """Stop the timers."""
        self._keeper.stop()

    async def _hold(self, ids: Sequence[bytes]) -> set[bytes]:
        return await self.shared.settler.hold(self, ids)


class FanOutAttachment(Attachment):
    """One topic as all subscribers without a group see it; the source of their deliveries."""

    def __init__(self, place: Place, group: str, consumer: str, shared: Shared) -> None:
        super().__init__(place, group, consumer, shared)
        self._in_flight: dict[bytes, Delivery] = {}
        self._keeper = Keeper(self._in_flight, place.settings, shared, hold=None)
        self._watched = place.settings.in_flight_timeout_ms > 0

    def room(self) -> int:
        """The room of the subscriber with the least: every one gets every event."""
        return min((member.subscriber.room() for member in self.members), default=UNLIMITED)

    def capacity(self) -> int:
        """The smallest limit."""
        return min((member.subscriber.limit for member in self.members), default=UNLIMITED)

    def take(self, entries: Entries) -> None:
        """Acknowledge the entries and deliver each to every subscriber."""
        if not entries:
            return
        self.shared.settler.ack_unseen(self, [entry_id for entry_id, _ in entries])
        self.position = entries[-1][0]
        for entry_id, fields in entries:
            raw = self._for_us(entry_id, fields)
            if raw is not None:
                order = entry_order(entry_id)
                for member in self.members:
                    if order > member.floor:
                        self._deliver(member, entry_id, raw, fields or [])

    def replay(self, member: Member, entries: Entries) -> None:
        """Deliver entries of the past to one subscriber."""
        for entry_id, fields in entries:
            if (raw := self._for_us(entry_id, fields)) is not None and (delivery := self._made(member, entry_id, raw)):
                delivery.fields = fields
                member.subscriber.deliver(delivery)

    def replayed(self, member: Member) -> None:
        """Deliver what arrived meanwhile."""
        held_up, member.held_up = member.held_up or [], None
        for delivery in held_up:
            member.subscriber.deliver(delivery)

    def _for_us(self, entry_id: bytes, fields: list[bytes] | None) -> bytes | None:
        """The event's JSON, None for an entry that is not for subscribers without a group or holds no event."""
        if fields is None:
            self.shared.counters.trimmed += 1
            return None
        raw, marker = read_fields(fields)
        if marker is not None:
            return None  # some group's retry
        if raw is None or decode(raw) is None:
            # Not kept in the dead letters: every process would keep it once more, and groups do so.
            self.shared.counters.invalid += 1
            self.shared.log.warning("%s: entry %s is no event", self.place.topic, entry_id.decode())
            return None
        return raw

    def _deliver(self, member: Member, entry_id: bytes, raw: bytes, fields: list[bytes]) -> None:
        delivery = self._made(member, entry_id, raw)
        if delivery is None:
            return
        delivery.fields = fields
        if member.held_up is not None:
            member.held_up.append(delivery)
        else:
            member.subscriber.deliver(delivery)

    def _made(self, member: Member, entry_id: bytes, raw: bytes, attempt: int | None = None) -> Delivery | None:
        event: Event | None = decode(raw)  # anew for each: a handler may change what it got
        if event is None:
            return None
        number = attempt_of(event) if attempt is None else attempt
        event["deliveryAttempt"] = number
        return Delivery(self.place.topic, event, number, self, member.subscriber, entry_id)

    # ---- source of deliveries ----

    def ack(self, delivery: Delivery) -> Outcome:
        """Nothing to record: it was acknowledged when it arrived."""
        self.settled(delivery)
        return Outcome.nothing()

    def nack(self, delivery: Delivery, reason: str) -> Outcome:
        """Deliver it once more to the same subscriber, or give it up at the cap."""
        self.settled(delivery)
        settings = self.place.settings
        if may_retry(delivery.attempt, settings.max_attempts):
            loop, late = asyncio.get_running_loop(), delivery.attempt - _AT_ONCE
            if late <= 0:
                loop.call_soon(self._again, delivery)
            else:
                loop.call_later(_AGAIN.delay(late, 0.0), self._again, delivery)
            self.shared.counters.nacked += 1
            return Outcome.nothing()
        why = GivenUp(reason, self.group, delivery.attempt, created_now())
        self.shared.log.warning(
            "%s: event %s given up after attempt %d: %s",
            self.place.topic, delivery.event.get("id"), delivery.attempt, reason,
        )  # fmt: skip
        return self.shared.settler.keep_dead_letter(self, delivery.fields or [], why)

    def hand_back(self, delivery: Delivery) -> Outcome:
        """Nothing to do: nobody else is to get it."""
        self.settled(delivery)
        return Outcome.nothing()

    def extend(self, delivery: Delivery) -> Outcome:
        """Give its handler the whole time again."""
        return self._keeper.extend(delivery)

    def started(self, delivery: Delivery) -> None:
        """Watch how long it takes."""
        if self._watched:
            self._in_flight[b"%d" % id(delivery)] = delivery
            self._keeper.started(delivery)

    def settled(self, delivery: Delivery) -> None:
        """Forget it."""
        delivery.finish()
        if self._watched:
            self._in_flight.pop(b"%d" % id(delivery), None)

    def stop(self) -> None:
        """Stop the timers."""
        self._keeper.stop()

    def _again(self, failed: Delivery) -> None:
        member = next((member for member in self.members if member.subscriber is failed.subscriber), None)
        raw, _ = read_fields(failed.fields or [])
        if member is None or raw is None or failed.subscriber.closing:
            return
        delivery = self._made(member, failed.entry_id, raw, failed.attempt + 1)
        if delivery is not None:
            delivery.fields = failed.fields
            member.subscriber.deliver(delivery)


class _Nobody:
    """Stands for a subscriber that left while its entries were on their way."""

    limit = 0
    on_room: OnRoom | None = None
    closing = False

    def room(self) -> int:
        return 0

    def deliver(self, delivery: Delivery) -> None:
        delivery.hand_back()

    def released(self, delivery: Delivery) -> None:
        """Nobody counts."""

    def regained(self, delivery: Delivery) -> None:
        """Nobody counts."""

    def end(self) -> list[Delivery]:
        return []

    def busy(self) -> bool:
        return False

    async def idle(self) -> None:
        """Always."""

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        return False

    def abandon(self) -> None:
        """Nobody runs."""


_NOBODY = _Nobody()
