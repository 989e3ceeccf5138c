"""One connection to Redis that many callers share: multiplexed, pipelined, answered in order.

Commands of one turn of the event loop leave in one write; replies go to the callers in the order of the commands. The
slot of a caller that gave up stays in its place and its reply is dropped, so no reply ever reaches another caller.

A link lives once: when it is lost it stays lost (`line.py` makes the next one), and no command is ever sent twice. What
a loss means for a command is exact in one direction: `LinkLost.sent` False means it certainly did not leave.

This is the per-message path. It uses futures and timers of asyncio itself: an anyio cancel scope per command costs more
than the whole command does here (see benchmarks/).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import anyio
import anyio.to_thread
import hiredis

from streamhold._backends.redis.command import (
    Arg,
    DeadlinePassed,
    LinkLost,
    Reply,
    ReplyError,
    pack,
    pack_transaction,
    replies_of_transaction,
)
from streamhold._backends.redis.endpoint import Credentials, Endpoint, StaticCredentials, watch_for_a_dead_peer

__all__ = ["Link"]

_NOTHING_YET = object()
_FOREVER = math.inf
# A deadline that passes in silence condemns the link; a silence shorter than this is a hiccup, whatever the deadline.
_SILENCE_OF_A_HICCUP = 1.0
# Deadlines are looked at no more often than this, so that thousands of different ones cost no scan each.
_TIMER_GRAIN = 0.005
_CLOSE_GRACE = 1.0
_WRITE_BUFFER = 1 << 20
# A write of more than this is watched while it leaves: that takes a slow network longer than a silence may last.
_LARGE_WRITE = 1 << 18
_LOOK_AT_WRITES = 0.5


# What waits for a reply: the caller's future, its deadline, how many replies it takes. A plain tuple: an object of our
# own costs a third of the whole submit.
_Slot: TypeAlias = tuple["asyncio.Future[Any]", float, int]


class Link(asyncio.Protocol):
    """One connection, from `connect` to its loss."""

    full: bool
    """Whether a caller should wait for `room` before it submits."""
    time: Callable[[], float]
    """The clock of the deadlines."""
    client_id: int | None
    """What the server calls this connection (CLIENT ID); None when it will not say."""

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: Credentials,
        *,
        name: str,
        connect_timeout: float = 5.0,
        silence_limit: float | None = 5.0,
        stretch: float | None = None,
        max_queued: int = 16_384,
        max_queued_bytes: int = 16 << 20,
        on_lost: Callable[[Link], None] | None = None,
    ) -> None:
        """Describe the link; `connect` opens it.

        Args:
            endpoint: where to.
            credentials: asked once, while connecting.
            name: what CLIENT LIST shows.
            connect_timeout: seconds for the address look-up, TCP, TLS and the handshake together.
            silence_limit: seconds without a byte while replies are due after which the link counts as dead; None
                leaves that to the deadlines (for commands that block at the server).
            stretch: deadlines do not pass while a reply is arriving, with pauses shorter than this many seconds.
            max_queued: unanswered commands after which the link is `full`.
            max_queued_bytes: bytes not yet written after which the link is `full`.
            on_lost: called once, when the link has ended.
        """
        self.endpoint = endpoint
        self.full = False
        self.client_id = None
        self._credentials = credentials
        self._name = name
        self._connect_timeout = connect_timeout
        self._silence_limit = _FOREVER if silence_limit is None else silence_limit
        self._stretch = stretch
        self._max_queued, self._max_queued_bytes = max_queued, max_queued_bytes
        self._on_lost = on_lost

        self._loop = loop = asyncio.get_running_loop()
        self._create_future = loop.create_future
        self.time = loop.time
        self._reader = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOTHING_YET, errors="replace")
        self._transport: asyncio.Transport | None = None
        self._gone: asyncio.Future[None] | None = None
        self._lost: str | None = "not connected"
        self._retiring = False
        self._paused = False

        self._queue: deque[tuple[bytes, _Slot]] = deque()  # accepted, not written
        self._queued_bytes = 0
        self._handed_over = 0  # bytes given to the transport
        self._taken = 0  # bytes that had left it at the last look
        self._wrote_at = 0.0
        self._spare_slots = max_queued  # how long `_queue` may get; the rest of the bound is taken by `_pending`
        self._pending: deque[_Slot] = deque()  # written, not answered, in this order
        self._collected: list[Reply] = []  # replies of the transaction at the head of `_pending`
        self._flush_is_due = False
        self._waiters: deque[asyncio.Future[None]] = deque()  # callers waiting for room, in this order
        self._admitted = 0  # callers told that there is room who did not submit yet
        self._typical_bytes = 1  # of a command, as of the last flush: how large those of waiting callers may be

        self._nearest_deadline = _FOREVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _FOREVER
        self._busy_since = 0.0
        self._heard_at = 0.0

    # ---- opening and closing ----

    @property
    def usable(self) -> bool:
        """Whether commands can be submitted."""
        return self._lost is None and not self._retiring

    @property
    def unanswered(self) -> int:
        """How many commands were accepted and not answered."""
        return len(self._queue) + len(self._pending)

    @property
    def unwritten_bytes(self) -> int:
        """How many bytes of commands were accepted and not written."""
        return self._queued_bytes

    async def connect(self) -> None:
        """Open the connection and shake hands.

        Raises:
            OSError: it could not be opened in time (also `TimeoutError`, `ssl.SSLError`).
            ReplyError: the server refused the credentials or the database.
            LinkLost: the server closed it during the handshake.
        """
        try:
            with anyio.fail_after(self._connect_timeout):
                username, password = await self._read_credentials()
                await self._open()
                await self._shake_hands(username, password)
        except BaseException as exc:
            self._lose(f"connecting failed: {exc!r}")
            raise

    async def _read_credentials(self) -> tuple[str | None, str | None]:
        if isinstance(self._credentials, StaticCredentials):
            return self._credentials()
        # They may come from a mounted file or a token service: reading must not hold up the loop.
        return await anyio.to_thread.run_sync(self._credentials, abandon_on_cancel=True)

    async def _open(self) -> None:
        endpoint = self.endpoint
        name = (endpoint.server_name or endpoint.host) if endpoint.tls is not None else None
        if endpoint.path is not None:
            await self._loop.create_unix_connection(lambda: self, endpoint.path, ssl=endpoint.tls, server_hostname=name)
        else:
            await self._loop.create_connection(
                lambda: self, endpoint.host, endpoint.port, ssl=endpoint.tls, server_hostname=name
            )

    async def _shake_hands(self, username: str | None, password: str | None) -> None:
        steps: list[tuple[Arg, ...]] = []
        if password is not None or username is not None:
            steps.append(("AUTH", password or "") if username is None else ("AUTH", username, password or ""))
        if self.endpoint.database:
            steps.append(("SELECT", self.endpoint.database))
        steps += [("CLIENT", "SETNAME", self._name), ("CLIENT", "ID")]
        *needed, named, numbered = await asyncio.gather(*map(self.submit, steps), return_exceptions=True)
        for answer in needed:
            if isinstance(answer, BaseException):
                raise answer
        # Name and number are a courtesy: an ACL may refuse them. But the name may also be the first command of the
        # connection, and then its refusal says that we may not be here at all.
        if isinstance(named, BaseException) and not _is_refused_courtesy(named):
            raise named
        if isinstance(numbered, int):
            self.client_id = numbered
        elif isinstance(numbered, LinkLost):
            raise numbered

    def retire(self) -> None:
        """Be used no more: close when the last reply is in."""
        if self.usable:
            self._retiring = True
            self._close_if_done()

    def close(self) -> None:
        """Close now; what is unanswered fails with `LinkLost`."""
        self._lose("closed by this process")

    async def aclose(self) -> None:
        """Close, and wait for the end: a second at most, whatever the server does."""
        self.close()
        if self._gone is not None and not self._gone.done():
            with anyio.move_on_after(_CLOSE_GRACE):
                await asyncio.shield(self._gone)
        if self._transport is not None:
            self._transport.abort()

    # ---- commands ----

    def submit(self, args: tuple[Arg, ...], deadline: float = _FOREVER) -> asyncio.Future[Reply]:
        """Accept one command; it leaves at the end of this turn of the loop.

        Args:
            args: the command and its arguments.
            deadline: on the loop's clock; then the future fails with `DeadlinePassed`.

        Returns:
            A future with the reply. It fails with `ReplyError`, `LinkLost` or `DeadlinePassed`. Cancelling it before
            the command left takes the command back; later it only drops the reply.
        """
        return self.submit_packed(pack(args), deadline)

    def submit_packed(self, data: bytes, deadline: float = _FOREVER, replies: int = 1) -> asyncio.Future[Reply]:
        """Accept what is in wire format already: one command, or with more `replies` one transaction (`Prepared`)."""
        future: asyncio.Future[Reply] = self._create_future()
        if self._lost is not None:
            future.set_exception(LinkLost(self._lost, sent=False))
            return future
        queue = self._queue
        queue.append((data, (future, deadline, replies)))
        self._queued_bytes += len(data)
        if deadline < self._nearest_deadline:
            self._nearest_deadline = deadline
        if len(queue) >= self._spare_slots or self._queued_bytes >= self._max_queued_bytes:
            self.full = True
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        return future

    def submit_transaction(
        self, commands: Iterable[Sequence[Arg]], deadline: float = _FOREVER
    ) -> asyncio.Future[list[Reply]]:
        """Accept commands that run as one atomic step (MULTI … EXEC), with no other command between them.

        Returns:
            A future with the replies; an error while running is a `ReplyError` among them. It fails as `submit` says,
            and with the first real error when the server refused to queue one (then none ran).
        """
        data, replies = pack_transaction(commands)
        return self.submit_packed(data, deadline, replies)

    def _flush(self) -> None:
        """Write what was accepted: one write for all of a turn."""
        self._flush_is_due = False
        transport = self._transport
        if transport is None or self._lost is not None or not self._queue:
            return
        now = self._loop.time()
        if not self._paused and not transport.is_closing():
            pending = self._pending
            if not pending:
                self._busy_since = now
            self._typical_bytes = self._queued_bytes // len(self._queue)
            chunks = []
            for data, slot in self._queue:
                if not slot[0].done():  # given up before it left: never send it
                    chunks.append(data)
                    pending.append(slot)
            self._queue.clear()
            self._queued_bytes = 0
            if chunks:
                data = b"".join(chunks) if len(chunks) > 1 else chunks[0]
                transport.write(data)
                self._handed_over += len(data)
                if len(data) > _LARGE_WRITE and now + _LOOK_AT_WRITES < self._timer_at:
                    self._arm(now + _LOOK_AT_WRITES)
            self._make_room()
        due = min(self._nearest_deadline, now + self._silence_limit)
        if due < self._timer_at:
            self._arm(due)

    async def room(self) -> None:
        """Wait, first come first served, until the link is not full."""
        if not self.full and not self._waiters:
            return
        if self._lost is not None:
            raise LinkLost(self._lost, sent=False)
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        self.full = True  # later callers queue up behind this one
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._admitted -= 1
                self._make_room()
            raise
        self._admitted -= 1  # the caller submits now, before anybody else runs

    def _make_room(self) -> None:
        """Note how much room there is; let waiting callers in."""
        self._spare_slots = self._max_queued - len(self._pending)
        waiters = self._waiters
        if not waiters and not self.full:
            return
        spare = self._max_queued_bytes - self._queued_bytes
        # One command larger than everything is let in when nothing else is waiting to be written.
        fitting = max(spare // self._typical_bytes, 1 if spare > 0 else 0)
        room = min(self._max_queued - self.unanswered, fitting) - self._admitted
        while waiters and room > 0:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._admitted += 1
                room -= 1
        self.full = bool(waiters) or room <= 0

    # ---- what the transport tells ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._lost = None
        self._gone = self._loop.create_future()
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._heard_at = self._loop.time()
        watch_for_a_dead_peer(transport.get_extra_info("socket"))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._lost is not None:
            return
        self._heard_at = self._loop.time()
        reader, pending = self._reader, self._pending
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOTHING_YET:
                if not pending:
                    self._lose(f"the server sent a reply that nothing asked for: {reply!r:.80}")
                    return
                slot = pending.popleft()
                future = slot[0]
                if slot[2] != 1:
                    self._collect(slot, reply)
                elif not future.done():
                    if type(reply) is ReplyError:
                        future.set_exception(reply)
                    else:
                        future.set_result(reply)
        except (hiredis.ProtocolError, UnicodeError) as exc:
            self._lose(f"the server does not speak the Redis protocol: {exc}")
            return
        self._make_room()
        if self._retiring:
            self._close_if_done()
        elif not self._flush_is_due:
            # Behind the callers that were just woken, so that what they submit next leaves in the turn they wake in,
            # not in the one after: a round trip of the loop less for who awaits one command after the other.
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"connection lost: {exc}" if exc is not None else "the server closed the connection")
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    # ---- transactions ----

    def _collect(self, slot: _Slot, reply: Reply) -> None:
        """Add one reply to the transaction at the head; settle it with the last."""
        future, _, count = slot
        collected = self._collected
        collected.append(reply)
        if len(collected) < count:
            self._pending.appendleft(slot)
            return
        self._collected = []
        outcome = replies_of_transaction(collected)
        if not future.done():
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        executed = collected[-1]
        if isinstance(executed, ReplyError) and executed.code != "EXECABORT":
            # The server may still be collecting commands: everything after this would be queued, not run.
            self._lose(f"EXEC was refused: {executed.message}")

    # ---- deadlines and silence ----

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._check_the_time)

    def _check_the_time(self) -> None:
        """Fail what is overdue; give the link up when it was silent for too long."""
        self._timer, self._timer_at = None, _FOREVER
        now = self._loop.time()
        if self._stretch is not None and self._heard_at > self._busy_since and now - self._heard_at < self._stretch:
            self._arm(self._heard_at + self._stretch)  # a long reply is on its way
            return
        writing = self._is_writing(now)
        overdue = self._fail_overdue(now)
        if not self._pending and not self._queue:
            return
        if self._pending:
            alive_at = max(self._heard_at, self._busy_since, self._wrote_at)
            silent_for = now - alive_at
            limit = min(self._silence_limit, _SILENCE_OF_A_HICCUP) if overdue else self._silence_limit
            if silent_for >= limit:
                self._lose(f"no byte from the server for {silent_for:.1f} s while replies were due")
                return
            heard = alive_at + self._silence_limit
        else:
            heard = now + self._silence_limit
        due = min(self._nearest_deadline, heard, now + _LOOK_AT_WRITES if writing else _FOREVER)
        if due < _FOREVER:
            self._arm(max(due, now + _TIMER_GRAIN))

    def _is_writing(self, now: float) -> bool:
        """Whether something still leaves; that the peer takes it is as good as hearing from it."""
        left = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if left and self._handed_over - left > self._taken:
            self._wrote_at = now
        self._taken = self._handed_over - left
        return left > 0

    def _fail_overdue(self, now: float) -> bool:
        """Fail every command whose deadline has passed; whether one of them had been sent."""
        nearest = _FOREVER
        sent_one = False
        for future, deadline, _ in self._pending:
            if future.done():
                continue
            if deadline <= now:
                future.set_exception(DeadlinePassed(sent=True))
                sent_one = True
            elif deadline < nearest:
                nearest = deadline
        for _, (future, deadline, _) in self._queue:
            if future.done():
                continue
            if deadline <= now:
                future.set_exception(DeadlinePassed(sent=False))
            elif deadline < nearest:
                nearest = deadline
        self._nearest_deadline = nearest
        return sent_one

    # ---- the end ----

    def _close_if_done(self) -> None:
        if not self._pending and not self._queue:
            self._lose("retired")

    def _lose(self, reason: str) -> None:
        """End the link: fail what is unanswered, tell the owner, close the connection. The first reason counts."""
        if self._lost is not None:
            return
        self._lost = reason
        if self._timer is not None:
            self._timer.cancel()
        idle = not self._pending and not self._queue
        for slots, sent in ((self._pending, True), ([slot for _, slot in self._queue], False)):
            for future, _, _ in slots:
                if not future.done():
                    future.set_exception(LinkLost(reason, sent=sent))
        self._pending.clear()
        self._queue.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(LinkLost(reason, sent=False))
        self._waiters.clear()
        self._notify_lost()
        if self._transport is not None:
            # `close` waits until everything is written, which a dead peer never lets happen.
            if idle and not self._transport.get_write_buffer_size():
                self._transport.close()
            else:
                self._transport.abort()

    def _notify_lost(self) -> None:
        told, self._on_lost = self._on_lost, None
        if told is not None:
            told(self)


def _is_refused_courtesy(answer: BaseException) -> bool:
    if not isinstance(answer, ReplyError) or answer.code in {"NOAUTH", "DENIED"}:
        return False
    return "max number of clients" not in answer.message
