"""What all backends share: a delivery, who gets it, and how a handler is run (C-12, C-14, C-15).

A backend is a `Source`: it makes deliveries and carries out their settlement. A `Subscriber` takes them: a callback, or
the buffer behind an iterator. Neither knows the other's kind.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeAlias, cast

import anyio
import anyio.to_thread

from streamhold._core.delivery import Settlement, State
from streamhold.errors import HubClosed
from streamhold.types import Callback, Event, Settle

__all__ = [
    "UNLIMITED",
    "CallbackSubscriber",
    "Counters",
    "Delivery",
    "Log",
    "OnRoom",
    "Outcome",
    "QueueSubscriber",
    "Source",
    "Subscriber",
    "is_async",
]

Log: TypeAlias = "logging.Logger | logging.LoggerAdapter[logging.Logger]"

OnRoom: TypeAlias = Callable[[], None]
_AsyncCallback: TypeAlias = Callable[[Event, Settle, Settle], Awaitable[object]]

UNLIMITED = 1 << 30
"""The room of a subscriber without a limit."""
_STANDSTILL = 3.0
"""Seconds without any settlement after which an iteration that waits for one is told of."""
_THREADS = 64
"""Worker threads for plain handlers of one subscriber without a limit of its own."""


class Counters:
    """What happened to events that were not simply handled; a hub's `counters`."""

    __slots__ = ("dead_lettered", "dropped", "invalid", "nacked", "reclaimed", "trimmed")

    def __init__(self) -> None:
        self.invalid = 0
        """Entries that hold no event (C-6)."""
        self.nacked = 0
        """Deliveries handed back to be tried again."""
        self.dropped = 0
        """Events given up at the cap and not kept."""
        self.dead_lettered = 0
        """Events given up and kept in the dead letters."""
        self.reclaimed = 0
        """Entries taken over from dead or stuck consumers."""
        self.trimmed = 0
        """Entries that were trimmed before they were handled (C-19)."""

    def __repr__(self) -> str:
        return f"Counters({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"


class Outcome(Coroutine[Any, Any, None]):
    """The end of an `ack`, `nack` or `extend` that has been started: awaiting it is optional.

    It has the methods of a coroutine, so that `asyncio.create_task` and task groups take it; unlike one, it may be
    awaited any number of times, and by several tasks at once.
    """

    __slots__ = ("_done", "_error", "_steps", "_waiters")

    def __init__(self) -> None:
        self._done = False
        self._error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._steps: dict[asyncio.Task[Any] | None, Generator[Any, None, None]] | None = None

    @classmethod
    def nothing(cls) -> Outcome:
        """The outcome of a call that had nothing to do."""
        return _NOTHING

    def succeed(self) -> None:
        """Tell all who wait that it worked."""
        self._end(None)

    def fail(self, error: Exception) -> None:
        """Tell all who wait why it did not work."""
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._done, self._error = True, error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def __await__(self) -> Generator[Any, None, None]:
        if not self._done:
            # One future each: a caller that is cancelled cancels its own.
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            yield from waiter
        if self._error is not None:
            raise self._error

    # ---- what a task needs that was made of it ----

    def send(self, value: Any, /) -> Any:
        """Go on waiting, on behalf of the current task."""
        return self._step(lambda waiting: waiting.send(value))

    def throw(self, kind: Any, value: Any = None, trace: Any = None, /) -> Any:
        """End the waiting of the current task with an exception, e.g. its cancellation."""
        error = kind if isinstance(kind, BaseException) else kind() if value is None else value
        return self._step(lambda waiting: waiting.throw(error))

    def close(self) -> None:
        """Nothing to do: what was started goes on."""

    def _step(self, step: Callable[[Generator[Any, None, None]], Any]) -> Any:
        if self._steps is None:
            self._steps = {}
        task = asyncio.current_task()
        waiting = self._steps.get(task)
        if waiting is None:
            waiting = self._steps[task] = self.__await__()
        try:
            return step(waiting)
        except BaseException:
            del self._steps[task]
            raise


_NOTHING = Outcome()
_NOTHING.succeed()


class Source(Protocol):
    """What made a delivery and settles it."""

    def ack(self, delivery: Delivery) -> Outcome:
        """Record that it was handled."""
        ...

    def nack(self, delivery: Delivery, reason: str) -> Outcome:
        """Have it delivered again, or give it up at the cap."""
        ...

    def hand_back(self, delivery: Delivery) -> Outcome:
        """Have it delivered to somebody else, without counting an attempt."""
        ...

    def extend(self, delivery: Delivery) -> Outcome:
        """Say that it is still being worked on."""
        ...

    def started(self, delivery: Delivery) -> None:
        """A handler has it now."""
        ...


class Delivery(Settlement):
    """One event on its way to one subscriber."""

    __slots__ = ("_outcome", "attempt", "entry_id", "event", "fields", "held", "since", "source", "subscriber", "topic")

    def __init__(
        self,
        topic: str,
        event: Event,
        attempt: int,
        source: Source,
        subscriber: Subscriber,
        entry_id: bytes = b"",
        fields: list[bytes] | None = None,
    ) -> None:
        self.state = State.OPEN  # not super().__init__(): this is the per-message path
        self.topic = topic
        self.event = event
        self.attempt = attempt
        self.source = source
        self.subscriber = subscriber
        self.entry_id = entry_id
        self.fields = fields
        self.held = True
        """Buffered here or with a handler that runs: the backend keeps siblings from taking it over."""
        self.since = 0.0
        """When a handler got it, or last asked for more time."""
        self._outcome = _NOTHING

    def ack(self) -> Outcome:
        """Settle it as handled."""
        if self.begin():
            self.subscriber.released(self)
            self._outcome = self.source.ack(self)
        return self._outcome

    def nack(self, reason: str = "nacked by the handler") -> Outcome:
        """Settle it as not handled: it is delivered again, or given up at the cap."""
        if self.begin():
            self.subscriber.released(self)
            self._outcome = self.source.nack(self, reason)
        return self._outcome

    def hand_back(self) -> Outcome:
        """Give it to somebody else, without counting an attempt."""
        if self.begin():
            self.subscriber.released(self)
            self._outcome = self.source.hand_back(self)
        return self._outcome

    def extend(self) -> Outcome:
        """Reset the clocks that would take it from its handler (C-20)."""
        return self.source.extend(self) if self.state is State.OPEN else _NOTHING

    def failed(self) -> None:
        """The settlement did not work: it may be tried again."""
        self.reopen()
        self.subscriber.regained(self)


class Subscriber(Protocol):
    """Who gets deliveries."""

    limit: int
    """How many it takes at once."""
    on_room: OnRoom | None
    """Called when it has room again."""
    closing: bool
    """The hub is being closed: what its handlers cannot do any more is no fault of their events."""

    def room(self) -> int:
        """How many more deliveries it takes now."""
        ...

    def deliver(self, delivery: Delivery) -> None:
        """Take one; never waits and never refuses."""
        ...

    def released(self, delivery: Delivery) -> None:
        """A delivery is being settled."""
        ...

    def regained(self, delivery: Delivery) -> None:
        """Settling it failed: it is the subscriber's again."""
        ...

    def end(self) -> list[Delivery]:
        """Take nothing more; returns what was not handed to a handler yet."""
        ...

    def busy(self) -> bool:
        """Whether a handler has a delivery."""
        ...

    async def idle(self) -> None:
        """Wait until none has, except one that asks this itself."""
        ...

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is one of its handlers."""
        ...

    def abandon(self) -> None:
        """Cancel the handlers that run, except one that asks this itself."""
        ...


class CallbackSubscriber:
    """Runs a callback for each delivery, at most `limit` at once: an async one here, a plain one in a thread."""

    def __init__(self, callback: Callback, limit: int | None, log: Log) -> None:
        self.on_room: OnRoom | None = None
        self.closing = False
        self.running = 0
        self._callback = callback
        self._async_callback = cast("_AsyncCallback", callback) if is_async(callback) else None
        self.limit = limit or UNLIMITED
        self._waiting: deque[Delivery] = deque()
        self._log = log
        self._tasks: dict[Delivery, asyncio.Task[None]] = {}
        self._idle: anyio.Event | None = None
        self._threads: anyio.CapacityLimiter | None = None
        self._abandoned = False

    def room(self) -> int:
        """How many more handlers may start."""
        return self.limit - self.running - len(self._waiting)

    def deliver(self, delivery: Delivery) -> None:
        """Start a handler, or keep the delivery until one may start."""
        if self.running >= self.limit:
            self._waiting.append(delivery)
        else:
            self._start(delivery)

    def released(self, delivery: Delivery) -> None:
        """Nothing to do: a handler counts until it returns, whenever it settled."""

    def regained(self, delivery: Delivery) -> None:
        """Nothing to do, as in `released`."""

    def end(self) -> list[Delivery]:
        """Start no more handlers; those that run go on."""
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def busy(self) -> bool:
        """Whether a handler runs."""
        return self.running > 0

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is one of its handlers."""
        return task in self._tasks.values()

    def abandon(self) -> None:
        """Cancel the handlers that run; a thread goes on, but nobody waits for it."""
        self._abandoned = True
        for task in list(self._tasks.values()):
            if task is not asyncio.current_task():
                task.cancel()

    async def idle(self) -> None:
        """Wait until no handler runs, except one that asks this itself."""
        while self.running > self.runs(asyncio.current_task()):
            self._idle = anyio.Event()
            await self._idle.wait()

    def _start(self, delivery: Delivery) -> None:
        self.running += 1
        loop = asyncio.get_running_loop()
        delivery.since = loop.time()
        delivery.source.started(delivery)
        # A task of asyncio per message, without callbacks on its end: 10 µs, where an anyio task group takes 27. A task
        # of its own keeps what a handler does to its context from the next one.
        self._tasks[delivery] = loop.create_task(self._handle(delivery))

    async def _handle(self, delivery: Delivery) -> None:
        try:
            if self._async_callback is not None:
                await self._async_callback(delivery.event, delivery.ack, delivery.nack)
            else:
                await self._handle_in_thread(delivery)
        except Exception as error:
            if self.closing and isinstance(error, HubClosed):
                delivery.hand_back()
            else:
                self._log.warning("%s: handler failed, nacking: %r", delivery.topic, error, exc_info=error)
                delivery.nack(f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            if self._abandoned:
                delivery.hand_back()
                raise
            # The handler's own doing, or its application's: it counts, or an event could come round for ever.
            delivery.nack("the handler was cancelled, or something that it waited for")
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
        finally:
            delivery.held = False
            self.running -= 1
            self._tasks.pop(delivery, None)
            while self._waiting and self.running < self.limit:
                self._start(self._waiting.popleft())
            if self._idle is not None:
                self._idle.set()
            if self.on_room is not None:
                self.on_room()

    async def _handle_in_thread(self, delivery: Delivery) -> None:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(min(self.limit, _THREADS))
        ack, nack = _FromThread(delivery.ack), _FromThread(delivery.nack)
        # Abandoned when close() runs out of patience: a thread cannot be cancelled, its event is handed back.
        call = functools.partial(self._callback, delivery.event, ack, nack)
        returned = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        if inspect.isawaitable(returned):  # a plain function around an async one
            await returned


class _FromThread:
    """`ack` or `nack` for a plain handler: in its thread the call waits for the outcome."""

    __slots__ = ("_loop", "_loop_thread", "_settle")

    def __init__(self, settle: Callable[[], Outcome]) -> None:
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def __call__(self) -> Outcome:
        if threading.get_ident() == self._loop_thread:
            return self._settle()
        if self._loop.is_closed():
            raise HubClosed("ack or nack")  # the handler was abandoned when its hub closed
        asyncio.run_coroutine_threadsafe(self._wait(), self._loop).result()
        return _NOTHING

    async def _wait(self) -> None:
        await self._settle()


class QueueSubscriber:
    """The buffer behind an iterator."""

    def __init__(self, limit: int, *, until_settled: bool, on_standstill: OnRoom | None = None) -> None:
        """Make an empty buffer.

        Args:
            limit: deliveries it takes.
            until_settled: whether a delivery counts until it is settled, or only while it is buffered.
            on_standstill: called when somebody waits for the next one and none can come, since all that may be handed
                out is and nothing gets settled.
        """
        self.on_room: OnRoom | None = None
        self.closing = False
        self.limit = limit
        self._until_settled = until_settled
        self._on_standstill = on_standstill
        self._buffer: deque[Delivery] = deque()
        self._handed_out = 0
        self._idle: anyio.Event | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._ended = False

    def room(self) -> int:
        """How many more it takes."""
        return self.limit - len(self._buffer) - self._handed_out

    def deliver(self, delivery: Delivery) -> None:
        """Keep it until it is asked for."""
        self._buffer.append(delivery)
        self._wake()

    def released(self, delivery: Delivery) -> None:
        """Make room for another."""
        if self._until_settled and delivery.since:
            self._handed_out -= 1
            if self._idle is not None:
                self._idle.set()
            if self.on_room is not None:
                self.on_room()

    def regained(self, delivery: Delivery) -> None:
        """It takes up room again."""
        if self._until_settled and delivery.since:
            self._handed_out += 1

    def end(self) -> list[Delivery]:
        """End the iteration: those who wait get None."""
        self._ended = True
        left = list(self._buffer)
        self._buffer.clear()
        while self._waiters:
            self._wake()
        return left

    def busy(self) -> bool:
        """Whether something that was handed out is not settled."""
        return self._handed_out > 0

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """No: what iterates belongs to the application."""
        return False

    def abandon(self) -> None:
        """Nothing to do: what iterates belongs to the application."""

    async def idle(self) -> None:
        """Wait until all that was handed out is settled."""
        while self._handed_out > 0:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def next(self) -> Delivery | None:
        """Wait for the next delivery; None when there will be none."""
        while not self._buffer:
            if self._ended:
                return None
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            watch = self._watch_for_standstill()
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled() and self._buffer:
                    self._wake()  # it was meant for us; somebody else can have it
                raise
            finally:
                if watch is not None:
                    watch.cancel()
        delivery = self._buffer.popleft()
        if self._until_settled:
            self._handed_out += 1
        elif self.on_room is not None:
            self.on_room()
        delivery.since = asyncio.get_running_loop().time()
        delivery.source.started(delivery)
        return delivery

    def _watch_for_standstill(self) -> asyncio.TimerHandle | None:
        if self._on_standstill is None or not self._until_settled or self._handed_out < self.limit:
            return None
        return asyncio.get_running_loop().call_later(_STANDSTILL, self._on_standstill)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


def is_async(callback: Callback) -> bool:
    """Whether calling it makes something to await: an async function, a partial of one, an object with async call."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(getattr(callback, "__call__", None))  # noqa: B004
