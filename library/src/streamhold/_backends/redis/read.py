"""Reading: one blocking read per group name for all its topics (C-21, C-22, C-27).

A `GroupReader` owns one connection and one task. Each round reads all attached topics that somebody has room for in one
XREADGROUP. A read is never cancelled, its reply would strand entries: it is ended early with CLIENT UNBLOCK where the
server allows that, else it ends by itself within a second at most. Where it cannot be ended, what a topic holds when it
is added is read over the connection for commands.

What goes wrong with one topic must not stop the others: when a read of several fails, each is read alone once, and the
one at fault is set aside and tried again with a growing delay. After a lost reply, what the server counts as delivered
to us beyond the last entry we saw is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import anyio

from streamhold._backends.redis.attachment import Attachment, Entries, Shared
from streamhold._backends.redis.group import open_group
from streamhold._backends.store import Store, StoreReader
from streamhold._core.backoff import Backoff
from streamhold.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    HubClosed,
    OutcomeUnknown,
    StreamholdError,
)

__all__ = ["GroupReader"]

_LONGEST_BLOCK_MS = 1000
_BLOCK_MS_WITH_STARVED = 20
_LARGEST_READ = 256
_BYTES_PER_READ = 16 << 20
"""About what one read asks of a topic at most, judged by the entries seen before."""
_POLL_DORMANT = 1.0
_GATHER = 0.001
_RECOVERY_PAGE = 1000
# Nothing to do with any one topic: the connection is at fault.
_NO_CONNECTION = (OutcomeUnknown, BackendUnavailable, AuthenticationFailed)


class GroupReader:
    """Reads all topics of one group name in this process."""

    def __init__(self, client: Store, group: str, consumer: str, block_ms: int, shared: Shared) -> None:
        """Describe the reader; it connects when the first topic is attached."""
        self.group = group
        self.consumer = consumer
        self.attachments: dict[bytes, Attachment] = {}
        self._client = client
        self._block_ms = min(block_ms, _LONGEST_BLOCK_MS)
        self._shared = shared
        self._backoff = Backoff(first=0.1, limit=2.0)
        self._random = Random()
        self._wake = asyncio.Event()
        self._round_done = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._connection: StoreReader | None = None
        self._reading: list[Attachment] = []
        self._reply_lost = False
        self._failures = 0
        self._dormant_at = 0.0
        self._unblocking = False
        self._ahead: set[Attachment] = set()
        """Added while a read that cannot be ended early was under way: read apart from it."""

    def add(self, attachment: Attachment) -> None:
        """Read one more topic, from the next round on."""
        self.attachments[attachment.key] = attachment
        if self._task is None:
            self._task = self._shared.background.spawn(self._run(), f"streamhold reader {self.group}")
        self.poke()
        if self._reading and not self._can_unblock():
            self._ahead.add(attachment)
            self._shared.background.spawn(self._read_ahead(attachment))

    async def remove(self, attachment: Attachment) -> None:
        """Stop reading a topic; returns when no read under way includes it."""
        if self.attachments.get(attachment.key) is attachment:
            del self.attachments[attachment.key]
        self.poke()
        while attachment in self._reading or attachment in self._ahead:
            self._round_done.clear()
            await self._round_done.wait()

    async def stop(self, timeout: float) -> None:
        """Begin no more reads and wait for the one under way; with the server away, cut it off at last."""
        self._stopping = True
        self.poke()
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=timeout)
        with anyio.move_on_after(timeout):
            while self._ahead:
                self._round_done.clear()
                await self._round_done.wait()
        if self._connection is not None:
            await self._connection.aclose()
        await asyncio.wait([self._task])

    def poke(self) -> None:
        """Begin the next round now: something changed."""
        self._wake.set()
        if self._reading and not self._unblocking and self._can_unblock():
            self._unblocking = True
            self._shared.background.spawn(self._unblock())

    def room_made(self, attachment: Attachment) -> None:
        """A subscriber has room again."""
        if attachment.starved or not self._reading:
            attachment.starved = False
            self.poke()

    def written(self, key: bytes) -> None:
        """This process wrote to a topic: if its stream had expired, it is there again."""
        attachment = self.attachments.get(key)
        if attachment is not None and attachment.dormant:
            self._dormant_at = 0.0
            self.poke()

    # ---- the rounds ----

    async def _run(self) -> None:
        connection = self._connection = await self._client.open_reader(self.group)
        try:
            while not self._stopping:
                try:
                    await self._round(connection)
                except HubClosed:
                    return
                except StreamholdError as error:
                    await self._pause(error)
                except Exception as error:
                    # A fault of ours must not end all subscriptions of the group: what was read is looked at again.
                    self._shared.log.exception("reading as group %s met a fault of this library", self.group)
                    self._reply_lost = True
                    await self._pause(error)
        finally:
            self._reading = []
            self._round_done.set()
            await connection.aclose()

    async def _round(self, connection: StoreReader) -> None:
        self._wake.clear()
        if self._reply_lost:
            await self._read_again(connection)
        await self._restore_dormant()
        batch, soonest = self._choose()
        if not batch:
            with anyio.move_on_after(soonest):
                await self._wake.wait()
            return
        await self._gather(batch)
        await connection.connect()  # so that a poke from here on can end the read
        self._reading = batch
        try:
            await self._read(connection, batch)
            self._failures = 0
        finally:
            self._reading = []
            self._round_done.set()

    def _choose(self) -> tuple[list[Attachment], float | None]:
        """The topics to read now, and in how many seconds another may be due."""
        now = asyncio.get_running_loop().time()
        batch: list[Attachment] = []
        soonest: float | None = None
        for attachment in self.attachments.values():
            attachment.starved = False
            if attachment in self._ahead:
                continue  # it wakes us when it is done
            if attachment.dormant:
                wait = _POLL_DORMANT
            elif attachment.retry_at > now:
                wait = attachment.retry_at - now
            elif attachment.room() > 0:
                batch.append(attachment)
                continue
            else:
                attachment.starved = True
                continue
            soonest = wait if soonest is None else min(soonest, wait)
        return batch, soonest

    async def _gather(self, batch: Sequence[Attachment]) -> None:
        """Wait a moment for more room where there is little: a read of 50 costs hardly more than one of 1."""
        if any(attachment.room() * 2 < attachment.capacity() for attachment in batch):
            await anyio.sleep(_GATHER)

    async def _read(self, connection: StoreReader, batch: list[Attachment]) -> None:
        block_ms = self._block_ms
        if self._wake.is_set():
            block_ms = 1  # something changed since the round began
        elif not self._can_unblock() and any(attachment.starved for attachment in self.attachments.values()):
            block_ms = min(block_ms, _BLOCK_MS_WITH_STARVED)
        count = min(_count(attachment) for attachment in batch)
        keys = [attachment.key for attachment in batch]
        try:
            reply = await connection.execute(
                b"XREADGROUP", b"GROUP", self.group, self.consumer, b"COUNT", count, b"BLOCK", block_ms,
                b"STREAMS", *keys, *([b">"] * len(keys)), block=block_ms / 1000,
            )  # fmt: skip
        except _NO_CONNECTION:
            self._reply_lost = True
            raise
        except BackendError as error:
            await self._sort_out(connection, batch, error)
            return
        self._take(batch, reply)

    def _take(self, batch: Sequence[Attachment], reply: Sequence[tuple[bytes, Entries]] | None) -> None:
        for attachment in batch:
            attachment.failures = 0
        if not reply:
            return
        by_key = {attachment.key: attachment for attachment in batch}
        for key, entries in reply:
            attachment = by_key[key]
            fields = entries[-1][1] if entries else None
            attachment.entry_bytes = max(sum(map(len, fields or ())), attachment.entry_bytes * 7 // 8)
            attachment.take(entries)

    # ---- what can go wrong ----

    async def _pause(self, error: Exception) -> None:
        """Wait before the next round; a poke does not shorten it, only the end does."""
        self._failures += 1
        delay = self._backoff.delay(self._failures, self._random.random())
        if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            self._shared.log.warning("reading as group %s failed %d times: %s", self.group, self._failures, error)
        deadline = asyncio.get_running_loop().time() + delay
        while not self._stopping and (left := deadline - asyncio.get_running_loop().time()) > 0:
            self._wake.clear()
            with anyio.move_on_after(left):
                await self._wake.wait()

    async def _sort_out(self, connection: StoreReader, batch: Sequence[Attachment], error: BackendError) -> None:
        """A read of several topics was refused: find those at fault and go on with the others."""
        if error.code == "UNBLOCKED":  # a stream vanished under the read: the next one says which
            return
        if error.code == "NOGROUP" and (named := [one for one in batch if f"'{one.place.key}'" in str(error)]):
            for attachment in named:
                await self._restore(attachment)
            return
        if len(batch) == 1:
            await self._set_right(batch[0], error)
            return
        for attachment in batch:
            try:
                reply = await connection.execute(
                    b"XREADGROUP", b"GROUP", self.group, self.consumer, b"COUNT", _count(attachment),
                    b"STREAMS", attachment.key, b">", block=0,
                )  # fmt: skip
            except _NO_CONNECTION:
                self._reply_lost = True
                raise
            except BackendError as own:
                await self._set_right(attachment, own)
            else:
                self._take([attachment], reply)

    async def _set_right(self, attachment: Attachment, error: BackendError) -> None:
        if error.code == "NOGROUP":
            await self._restore(attachment)
        else:
            self._set_aside(attachment, error)

    def _set_aside(self, attachment: Attachment, error: StreamholdError) -> None:
        attachment.failures += 1
        delay = self._backoff.delay(attachment.failures, self._random.random())
        attachment.retry_at = asyncio.get_running_loop().time() + delay
        if attachment.failures & (attachment.failures - 1) == 0:
            self._shared.log.warning(
                "%s: reading as group %s failed %d times, trying again: %s",
                attachment.place.topic, self.group, attachment.failures, error,
            )  # fmt: skip

    async def _restore(self, attachment: Attachment) -> None:
        """Make a lost group anew after the last entry seen; leave an expired stream alone until somebody writes."""
        expires = attachment.place.settings.idle_ttl_ms > 0
        try:
            state, position = await open_group(self._client, attachment, attachment.position, make_stream=not expires)
        except _NO_CONNECTION:
            raise
        except BackendError as error:
            self._set_aside(attachment, error)
            return
        if state < 0:
            attachment.dormant = True
            return
        attachment.dormant = False
        attachment.failures += 1
        # A group that is gone again before a read worked must not be made in a hot loop; the first time is at once.
        if attachment.failures > 1:
            delay = self._backoff.delay(attachment.failures - 1, self._random.random())
            attachment.retry_at = asyncio.get_running_loop().time() + delay
        if state > 0:
            attachment.position = position
            self._shared.log.info(
                "%s: group %s was gone and begins anew after %s", attachment.place.topic, self.group, position.decode()
            )

    async def _restore_dormant(self) -> None:
        dormant = [attachment for attachment in self.attachments.values() if attachment.dormant]
        now = asyncio.get_running_loop().time()
        if dormant and now >= self._dormant_at:
            self._dormant_at = now + _POLL_DORMANT
            for attachment in dormant:
                await self._restore(attachment)

    async def _read_again(self, connection: StoreReader) -> None:
        """Read what a lost reply held: pending for us, beyond the last entry seen."""
        for attachment in list(self.attachments.values()):
            if attachment.dormant:
                continue
            more = True
            page = max(1, min(_RECOVERY_PAGE, _BYTES_PER_READ // max(1, attachment.entry_bytes)))
            while more:
                try:
                    reply = await connection.execute(
                        b"XREADGROUP", b"GROUP", self.group, self.consumer, b"COUNT", page,
                        b"STREAMS", attachment.key, attachment.position, block=0,
                    )  # fmt: skip
                except _NO_CONNECTION:
                    raise
                except BackendError as error:
                    await self._set_right(attachment, error)
                    break
                entries = reply[0][1] if reply else []
                attachment.take(entries)
                more = len(entries) == page
        self._reply_lost = False

    # ---- when a blocked read is in the way ----

    def _can_unblock(self) -> bool:
        return self._client.may_unblock and self._connection is not None and self._connection.connection_id is not None

    async def _read_ahead(self, attachment: Attachment) -> None:
        """Read what a new topic holds, until the reader takes over."""
        try:
            more = True
            while more and self._reading and attachment.room() > 0:
                count = _count(attachment)
                reply = await self._client.execute(
                    b"XREADGROUP", b"GROUP", self.group, self.consumer, b"COUNT", count,
                    b"STREAMS", attachment.key, b">",
                )  # fmt: skip
                self._take([attachment], reply)
                more = bool(reply) and len(reply[0][1]) == count
        except OutcomeUnknown:
            self._reply_lost = True
        except StreamholdError as error:  # the reader will meet it too and do what is to be done
            self._shared.log.debug("%s: reading ahead failed: %s", attachment.place.topic, error)
        except Exception:
            self._reply_lost = True
            raise
        finally:
            self._ahead.discard(attachment)
            self._round_done.set()
            self._wake.set()

    async def _unblock(self) -> None:
        try:
            batch = self._reading
            # The read may not have reached the server yet: ask again a few times.
            for _ in range(5):
                number = self._connection.connection_id if self._connection is not None else None
                if not batch or self._reading is not batch or number is None:
                    return
                if await self._client.execute("CLIENT", "UNBLOCK", number, "TIMEOUT", timeout=1.0):
                    return
                await anyio.sleep(0.005)
        except StreamholdError as error:
            if isinstance(error, BackendError) and error.code == "NOPERM":
                self._client.may_unblock = False
        finally:
            self._unblocking = False


def _count(attachment: Attachment) -> int:
    """How many entries to ask of a topic for."""
    return max(1, min(_LARGEST_READ, attachment.room(), _BYTES_PER_READ // max(1, attachment.entry_bytes)))
