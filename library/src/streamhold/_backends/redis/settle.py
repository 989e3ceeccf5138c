"""Settling deliveries: acks in batches, nacks in one atomic step (C-15 to C-17).

All acks of one turn of the event loop leave as one XACK per topic and group. A nack writes the event once more for its
own group and acknowledges the old entry, only while that is still pending for this consumer: repeating it is harmless.

What failed is tried again later, less and less often: else an event whose handler has ended would stay in flight here,
take up its subscriber's room, and be delivered to nobody.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from streamhold._backends.background import Background
from streamhold._backends.base import Counters, Delivery, Log, Outcome
from streamhold._backends.redis.command import Arg
from streamhold._backends.redis.scripts import Script
from streamhold._backends.stamp import created_now
from streamhold._backends.store import Store
from streamhold._core.backoff import Backoff
from streamhold._core.delivery import GivenUp, State, dead_letter, may_retry, read_fields, retry_fields
from streamhold._core.envelope import republished
from streamhold.errors import BackendError, BackendUnavailable, HubClosed, OutcomeUnknown, StreamholdError

if TYPE_CHECKING:
    from streamhold._backends.redis.attachment import Attachment

__all__ = ["Settler"]

Settling: TypeAlias = "Callable[[], Outcome]"

_NACK = Script("nack")
_HOLD = Script("hold")
_LEAVE = Script("leave")
_TRYING_AGAIN = Backoff(first=1.0, limit=30.0)
_IDS_PER_COMMAND = 1000
_IDS_PER_HOLD = 200


class _Batch:
    __slots__ = ("deliveries", "ids", "outcome")

    def __init__(self) -> None:
        self.ids: list[bytes] = []
        self.deliveries: list[Delivery] = []
        self.outcome = Outcome()


class Settler:
    """Sends the acks and nacks of one hub."""

    def __init__(self, client: Store, background: Background, counters: Counters, log: Log) -> None:
        self._client = client
        self._background = background
        self._counters = counters
        self._log = log
        self._batches: dict[Attachment, _Batch] = {}
        self._unsettled: dict[Delivery, Settling] = {}
        """Deliveries whose settlement failed, and how to repeat it."""
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._ending = False

    def ack(self, attachment: Attachment, delivery: Delivery) -> Outcome:
        """Acknowledge a delivery with all others of this turn."""
        batch = self._batch(attachment)
        batch.ids.append(delivery.entry_id)
        batch.deliveries.append(delivery)
        return batch.outcome

    def ack_unseen(self, attachment: Attachment, ids: Sequence[bytes]) -> None:
        """Acknowledge entries that nobody was given."""
        self._batch(attachment).ids.extend(ids)

    def nack(self, attachment: Attachment, delivery: Delivery, reason: str) -> Outcome:
        """Write the event once more with the next attempt, or give it up at the cap."""
        if may_retry(delivery.attempt, attachment.place.settings.max_attempts):
            work = self._write_again(attachment, delivery, delivery.attempt + 1)
        else:
            work = self._drop(attachment, delivery, reason)
        return self._alone(attachment, delivery, work, lambda: delivery.nack(reason))

    def hand_back(self, attachment: Attachment, delivery: Delivery) -> Outcome:
        """Write the event once more as it is: another consumer gets it now, not after the idle time."""
        work = self._write_again(attachment, delivery, delivery.attempt)
        return self._alone(attachment, delivery, work, delivery.hand_back)

    async def give_up(self, attachment: Attachment, entry_id: bytes, fields: Sequence[bytes], why: GivenUp) -> bool:
        """Acknowledge an entry for good, keeping it in the dead letters if there are some; False: not ours any more."""
        settings = attachment.place.settings
        if not settings.dead_letters:
            gone = await self._run_nack(attachment, entry_id, None, 0, 0, ())
            self._counters.dropped += gone
        else:
            letter = dead_letter(fields, why)
            limit = settings.dead_letter_max_length
            gone = await self._run_nack(attachment, entry_id, attachment.place.dead_key, limit, 0, letter)
            self._counters.dead_lettered += gone
        return gone

    def keep_dead_letter(self, attachment: Attachment, fields: Sequence[bytes], why: GivenUp) -> Outcome:
        """Keep what a subscriber without a group gave up, if the topic has dead letters."""
        settings = attachment.place.settings
        if not settings.dead_letters:
            self._counters.dropped += 1
            return Outcome.nothing()
        self._counters.dead_lettered += 1
        limit = settings.dead_letter_max_length
        trim: tuple[str | int, ...] = ("MAXLEN", "~", limit) if limit else ()
        outcome = Outcome()
        command = ("XADD", attachment.place.dead_key, *trim, "*", *dead_letter(fields, why))
        self._background.spawn(self._execute(command, outcome))
        return outcome

    async def _execute(self, command: Sequence[Arg], outcome: Outcome) -> None:
        try:
            await self._client.execute(*command)
        except StreamholdError as error:
            self._log.warning("keeping a dead letter failed: %s", error)
            outcome.fail(error)
        else:
            outcome.succeed()

    async def hold(self, attachment: Attachment, ids: Sequence[bytes]) -> set[bytes]:
        """Keep entries from being taken over; returns those that have been already."""
        lost: set[bytes] = set()
        for at in range(0, len(ids), _IDS_PER_HOLD):
            page = ids[at : at + _IDS_PER_HOLD]
            args: list[Arg] = [attachment.group, attachment.consumer, *page]
            lost.update(await self._client.run_script(_HOLD, [attachment.place.key], args, idempotent=True))
        return lost

    async def leave(self, attachment: Attachment) -> bool:
        """Remove this process's consumer from the group; False when it still has pending entries."""
        args = (attachment.group, attachment.consumer)
        return bool(await self._client.run_script(_LEAVE, [attachment.place.key], args, idempotent=True))

    # ---- acks ----

    def _batch(self, attachment: Attachment) -> _Batch:
        batch = self._batches.get(attachment)
        if batch is None:
            if not self._batches:
                asyncio.get_running_loop().call_soon(self._send)
            batch = self._batches[attachment] = _Batch()
        return batch

    def _send(self) -> None:
        batches, self._batches = self._batches, {}
        for attachment, batch in batches.items():
            self._background.spawn(self._send_batch(attachment, batch))

    async def _send_batch(self, attachment: Attachment, batch: _Batch) -> None:
        try:
            for at in range(0, len(batch.ids), _IDS_PER_COMMAND):
                ids = batch.ids[at : at + _IDS_PER_COMMAND]
                await self._client.execute(b"XACK", attachment.key, attachment.group, *ids, idempotent=True)
        except StreamholdError as error:
            self._log.warning("%s: %d acks failed: %s", attachment.place.topic, len(batch.ids), error)
            for delivery in batch.deliveries:
                self._failed(delivery, delivery.ack, error)
            batch.outcome.fail(error)
            return
        for delivery in batch.deliveries:
            attachment.settled(delivery)
        batch.outcome.succeed()

    # ---- what failed ----

    def end(self, delivery: Delivery) -> None:
        """Settle for the last time: as its handler wanted if that failed, else give it to somebody else."""
        if self._timer is not None:
            self._timer.cancel()
        self._ending = True
        self._unsettled.pop(delivery, delivery.hand_back)()

    def _failed(self, delivery: Delivery, again: Settling, error: StreamholdError) -> None:
        """Try again later: a handler that did not wait for the outcome does not know, and nobody else would."""
        delivery.failed()
        if self._ending or isinstance(error, HubClosed):
            return
        self._unsettled[delivery] = again
        if self._timer is None:
            self._failures += 1
            delay = _TRYING_AGAIN.delay(self._failures, random.random())
            self._timer = asyncio.get_running_loop().call_later(delay, self._try_again)

    def _try_again(self) -> None:
        self._background.spawn(self._settle_failed())

    async def _settle_failed(self) -> None:
        """Repeat what failed, of each topic until one fails again; without a connection nothing more."""
        due, self._unsettled = self._unsettled, {}
        refused: set[str] = set()
        unreachable = False
        for delivery, again in due.items():
            if delivery.state is not State.OPEN:
                continue  # its handler tried again itself
            if unreachable or delivery.topic in refused:
                self._unsettled[delivery] = again
                continue
            try:
                await again()
            except (BackendUnavailable, OutcomeUnknown, HubClosed):
                unreachable = True
            except StreamholdError:
                refused.add(delivery.topic)
        self._timer = None
        if not self._unsettled:
            self._failures = 0
        elif not self._ending:
            self._failures += 1
            delay = _TRYING_AGAIN.delay(self._failures, random.random())
            self._timer = asyncio.get_running_loop().call_later(delay, self._try_again)

    # ---- nacks ----

    def _alone(
        self, attachment: Attachment, delivery: Delivery, work: Coroutine[Any, Any, object], again: Settling
    ) -> Outcome:
        outcome = Outcome()
        self._background.spawn(self._see_through(attachment, delivery, work, again, outcome))
        return outcome

    async def _see_through(
        self,
        attachment: Attachment,
        delivery: Delivery,
        work: Coroutine[Any, Any, object],
        again: Settling,
        outcome: Outcome,
    ) -> None:
        try:
            await work
        except StreamholdError as error:
            self._log.warning("%s: settling %r failed: %s", delivery.topic, delivery.entry_id, error)
            self._failed(delivery, again, error)
            outcome.fail(error)
            return
        attachment.settled(delivery)
        outcome.succeed()

    async def _write_again(self, attachment: Attachment, delivery: Delivery, attempt: int) -> None:
        fields = delivery.fields or []
        raw, _ = read_fields(fields)
        again = retry_fields(fields, republished(raw or b"{}", attempt), attachment.group)
        settings = attachment.place.settings
        written = await self._run_nack(
            attachment, delivery.entry_id, attachment.key, settings.max_length, settings.idle_ttl_ms, again
        )
        self._counters.nacked += written

    async def _drop(self, attachment: Attachment, delivery: Delivery, reason: str) -> None:
        why = GivenUp(reason, attachment.group, delivery.attempt, created_now())
        if await self.give_up(attachment, delivery.entry_id, delivery.fields or [], why):
            kept = "moved to the dead letters" if attachment.place.settings.dead_letters else "dropped"
            self._log.warning(
                "%s: event %s %s after attempt %d in group %s: %s",
                delivery.topic, delivery.event.get("id"), kept, delivery.attempt, attachment.group, reason,
            )  # fmt: skip

    async def _run_nack(
        self,
        attachment: Attachment,
        entry_id: bytes,
        target: str | bytes | None,
        max_length: int,
        ttl_ms: int,
        fields: Sequence[bytes],
    ) -> bool:
        keys = [attachment.key] if target is None else [attachment.key, target]
        args: list[Arg] = [attachment.group, attachment.consumer, entry_id, max_length, ttl_ms, *fields]
        try:
            return bool(await self._client.run_script(_NACK, keys, args, idempotent=True))
        except BackendError as error:
            if error.code == "NOGROUP":  # the stream or the group is gone, and the pending entry with it
                return False
            raise
