"""Reclaim: hand entries of dead consumers to living ones (C-18, C-19).

A sweep pages through the pending list and claims what was idle too long, never what this process still works on: Redis
starts the idle clock at the read, not at the handler. How often an entry was delivered counts as attempts, so one that
kills its consumers ends at the cap. An entry that was trimmed meanwhile is dropped from the list.

Not guaranteed: a slow consumer's entry may run twice when its process cannot refresh it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio

from streamhold._backends.redis.attachment import GroupAttachment
from streamhold._backends.redis.client import RedisClient
from streamhold._core.delivery import entry_order
from streamhold.errors import BackendError, HubClosed, StreamholdError

__all__ = ["Sweeper"]

_PAGE = 100
_RETRY_ROOM = 0.05


class Sweeper:
    """The sweeps of one attachment, every `reclaim_interval_ms`, the first at once."""

    def __init__(self, client: RedisClient, attachment: GroupAttachment) -> None:
        self._client = client
        self._attachment = attachment
        self._idle_ms = attachment.place.settings.reclaim_idle_ms
        self._every = attachment.place.settings.reclaim_interval_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = not self._every
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sweep now, and again every interval."""
        if not self._stopped:
            self._tick()

    def stop(self) -> None:
        """Begin no more sweeps; one under way ends after its page."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        if self._stopped:
            return
        self._timer = asyncio.get_running_loop().call_later(self._every, self._tick)
        if self._sweeping is None or self._sweeping.done():  # a slow one is not overtaken
            self._sweeping = self._attachment.shared.background.spawn(self._sweep())

    async def _sweep(self) -> None:
        attachment = self._attachment
        try:
            start: bytes | str = "-"
            while not self._stopped:
                page = await self._pending(start)
                if not page:
                    return
                await self._claim([(entry_id, count) for entry_id, _, _, count in page])
                if len(page) < _PAGE:
                    return
                start = b"(" + page[-1][0]
        except HubClosed:
            return
        except StreamholdError as error:
            if not isinstance(error, BackendError) or error.code != "NOGROUP":  # the reader makes the group anew
                attachment.shared.log.warning("%s: reclaiming failed: %s", attachment.place.topic, error)

    async def _pending(self, start: bytes | str) -> list[tuple[bytes, bytes, int, int]]:
        """A page of entries that were left alone for long enough: id, consumer, idle time, deliveries."""
        reply: list[tuple[bytes, bytes, int, int]] = await self._client.execute(
            "XPENDING", self._attachment.key, self._attachment.group, "IDLE", self._idle_ms, start, "+", _PAGE,
            idempotent=True,
        )  # fmt: skip
        return reply

    async def _claim(self, page: Sequence[tuple[bytes, int]]) -> None:
        attachment = self._attachment
        left = [(entry_id, count) for entry_id, count in page if entry_id not in attachment.in_flight]
        while left and not self._stopped:
            room = attachment.room()
            if room <= 0:
                await anyio.sleep(_RETRY_ROOM)  # its handlers are busy: siblings may be faster, and that is fine
                continue
            now, left = left[:room], left[room:]
            await self._take_over(dict(now))

    async def _take_over(self, deliveries: dict[bytes, int]) -> None:
        attachment = self._attachment
        claimed = await self._client.execute(
            "XCLAIM", attachment.key, attachment.group, attachment.consumer, self._idle_ms, *deliveries,
        )  # fmt: skip
        # Redis 6.2 answers nil for an entry that was trimmed, later ones leave it out and drop it.
        entries = [entry for entry in claimed if entry is not None and entry[1] is not None]
        for entry_id, fields in entries:
            attachment.shared.counters.reclaimed += 1
            attachment.take_one(entry_id, fields, deliveries[entry_id])
        missing = deliveries.keys() - {entry_id for entry_id, _ in entries}
        if missing:
            await self._drop_trimmed(sorted(missing, key=entry_order))

    async def _drop_trimmed(self, ids: Sequence[bytes]) -> None:
        """Of entries that could not be claimed: forget those that were trimmed; a sibling has the others."""
        attachment = self._attachment
        for entry_id in ids:
            if not await self._client.execute("XRANGE", attachment.key, entry_id, entry_id, idempotent=True):
                attachment.count_trimmed(entry_id)
