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

from streamhold._backends.redis.attachment import GroupAttachment, Shared
from streamhold._backends.redis.scripts import Script
from streamhold._backends.store import Store
from streamhold._core.delivery import entry_order
from streamhold.errors import BackendError, HubClosed, StreamholdError

__all__ = ["Sweeper"]

_STALE = Script("stale")
_PAGE = 100
_RETRY_ROOM = 0.05
_FIRST = 0.05
_EARLY = 0.1
_TOPICS_PER_LOOK = 250


class Sweeper:
    """The sweeps of one hub. Topics that are due at about the same time are looked at in one command."""

    def __init__(self, client: Store, shared: Shared) -> None:
        self._client = client
        self._shared = shared
        self._due: dict[GroupAttachment, float] = {}
        """When to sweep next (on the loop's clock)."""
        self._sweeping: set[GroupAttachment] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, attachment: GroupAttachment) -> None:
        """Sweep a topic almost at once, and again every `reclaim_interval_ms`."""
        if attachment.place.settings.reclaim_interval_ms:
            self._due[attachment] = asyncio.get_running_loop().time() + _FIRST
            self._arm()

    def remove(self, attachment: GroupAttachment) -> None:
        """Sweep it no more; a sweep under way ends after its page."""
        self._due.pop(attachment, None)

    def stop(self) -> None:
        """Sweep nothing more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._due:
            self._timer = asyncio.get_running_loop().call_at(min(self._due.values()), self._tick)

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        by_group: dict[str, list[GroupAttachment]] = {}
        for attachment, at in self._due.items():
            every = attachment.place.settings.reclaim_interval_ms / 1000
            # A little early rather than late: so those of about the same time come together.
            if at <= now + every * _EARLY:
                self._due[attachment] = now + every
                if attachment not in self._sweeping:  # a slow one is not overtaken
                    by_group.setdefault(attachment.group, []).append(attachment)
        for group, attachments in by_group.items():
            for at in range(0, len(attachments), _TOPICS_PER_LOOK):
                self._shared.background.spawn(self._look(group, attachments[at : at + _TOPICS_PER_LOOK]))
        self._arm()

    async def _look(self, group: str, attachments: Sequence[GroupAttachment]) -> None:
        """Find out which of these topics need a sweep, and sweep them."""
        if len(attachments) > 1:
            keys = [attachment.key for attachment in attachments]
            idle = [attachment.place.settings.reclaim_idle_ms for attachment in attachments]
            try:
                stale = await self._client.run_script(_STALE, keys, (group, *idle), idempotent=True)
            except HubClosed:
                return
            except StreamholdError:  # each is asked alone: what is wrong with one must not keep the others
                stale = range(1, len(attachments) + 1)
            attachments = [attachments[at - 1] for at in stale]
        for attachment in attachments:
            if attachment in self._due:
                self._sweeping.add(attachment)
                self._shared.background.spawn(self._sweep(attachment))

    async def _sweep(self, attachment: GroupAttachment) -> None:
        try:
            start: bytes | str = "-"
            while attachment in self._due:
                page = await self._pending(attachment, start)
                if page:
                    await self._claim(attachment, [(entry_id, count) for entry_id, _, _, count in page])
                if len(page) < _PAGE:
                    return
                start = b"(" + page[-1][0]
        except HubClosed:
            return
        except StreamholdError as error:
            if not isinstance(error, BackendError) or error.code != "NOGROUP":  # the reader makes the group anew
                self._shared.log.warning("%s: reclaiming failed: %s", attachment.place.topic, error)
        finally:
            self._sweeping.discard(attachment)

    async def _pending(self, attachment: GroupAttachment, start: bytes | str) -> list[tuple[bytes, bytes, int, int]]:
        """A page of entries that were left alone for long enough: id, consumer, idle time, deliveries."""
        reply: list[tuple[bytes, bytes, int, int]] = await self._client.execute(
            "XPENDING", attachment.key, attachment.group, "IDLE", attachment.place.settings.reclaim_idle_ms,
            start, "+", _PAGE, idempotent=True,
        )  # fmt: skip
        return reply

    async def _claim(self, attachment: GroupAttachment, page: Sequence[tuple[bytes, int]]) -> None:
        left = [(entry_id, count) for entry_id, count in page if entry_id not in attachment.in_flight]
        while left and attachment in self._due:
            room = attachment.room()
            if room <= 0:
                await anyio.sleep(_RETRY_ROOM)  # its handlers are busy: siblings may be faster, and that is fine
                continue
            now, left = left[:room], left[room:]
            await self._take_over(attachment, dict(now))

    async def _take_over(self, attachment: GroupAttachment, deliveries: dict[bytes, int]) -> None:
        claimed = await self._client.execute(
            "XCLAIM", attachment.key, attachment.group, attachment.consumer,
            attachment.place.settings.reclaim_idle_ms, *deliveries,
        )  # fmt: skip
        # Redis 6.2 answers nil for an entry that was trimmed, later ones leave it out and drop it.
        entries = [entry for entry in claimed if entry is not None and entry[1] is not None]
        for entry_id, fields in entries:
            self._shared.counters.reclaimed += 1
            attachment.take_one(entry_id, fields, deliveries[entry_id])
        missing = deliveries.keys() - {entry_id for entry_id, _ in entries}
        if missing:
            await self._drop_trimmed(attachment, sorted(missing, key=entry_order))

    async def _drop_trimmed(self, attachment: GroupAttachment, ids: Sequence[bytes]) -> None:
        """Of entries that could not be claimed: forget those that were trimmed; a sibling has the others."""
        for entry_id in ids:
            if not await self._client.execute("XRANGE", attachment.key, entry_id, entry_id, idempotent=True):
                attachment.count_trimmed(entry_id)
