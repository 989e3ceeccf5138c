"""The one work queue: which key is worked on next, and never the same one twice at once.

Keys are grouped (here: by the connection they depend on); groups take turns, so a thousand keys of one group never
hold up a single key of another, and a group may occupy only some of the workers. A key added while it is worked on
runs once more afterwards. A key that failed comes back after an exponential, jittered delay; adding it by hand (its
object changed) brings it forward.

`Backlog` is the pure part, with the time passed in; `WorkQueue` adds the waiting. Not guaranteed: any order between
keys of different groups, or that a key added twice before it runs is run twice.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long a key that failed waits before it is tried again."""

    first: float = 0.5
    """Seconds after the first failure."""
    factor: float = 2.0
    longest: float = 60.0
    jitter: float = 0.25
    """Each delay is spread by this share of itself, so that keys that failed together do not return together."""

    def __post_init__(self) -> None:
        if self.first <= 0 or self.longest < self.first:
            raise ValueError(f"backoff: first={self.first} must be positive and at most longest={self.longest}")
        if self.factor < 1 or not 0 <= self.jitter < 1:
            raise ValueError(f"backoff: factor={self.factor} must be at least 1, jitter={self.jitter} in [0, 1)")

    def delay(self, failures: int, rng: random.Random) -> float:
        """Return the seconds to wait after this many failures in a row (at least one)."""
        exponent = min(failures - 1, 32)
        plain = min(self.longest, self.first * self.factor**exponent)
        return float(plain * (1 + self.jitter * (2 * rng.random() - 1)))


class Backlog(Generic[K]):
    """Keys that wait, run or sleep. Pure: every method takes the time it needs."""

    def __init__(
        self,
        group_of: Callable[[K], Hashable],
        *,
        backoff: Backoff | None = None,
        per_group: int = 4,
        rng: random.Random | None = None,
    ) -> None:
        if per_group < 1:
            raise ValueError(f"per_group={per_group} must be at least 1")
        self._group_of = group_of
        self._backoff = backoff or Backoff()
        self._per_group = per_group
        self._rng = rng or random.Random()
        self._ready: dict[Hashable, deque[K]] = {}
        self._turns: deque[Hashable] = deque()
        self._queued: set[K] = set()
        self._running: dict[K, Hashable] = {}
        self._running_in: dict[Hashable, int] = {}
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._sleeping: dict[K, float] = {}
        self._alarms: list[tuple[float, int, K]] = []
        self._alarm_number = 0

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def running(self) -> int:
        """How many keys are worked on now."""
        return len(self._running)

    @property
    def sleeping(self) -> int:
        """How many keys wait for a time to come."""
        return len(self._sleeping)

    def failures(self, key: K) -> int:
        """Return how often the key failed in a row."""
        return self._failures.get(key, 0)

    def add(self, key: K) -> None:
        """Have the key run as soon as its group's turn comes; again, when it runs now."""
        self._sleeping.pop(key, None)
        if key in self._running:
            self._again.add(key)
        elif key not in self._queued:
            self._enqueue(key)

    def add_later(self, key: K, when: float) -> None:
        """Have the key run at `when` at the latest; an earlier time already set stays."""
        if key in self._queued or key in self._again or self._sleeping.get(key, when + 1) <= when:
            return
        self._sleeping[key] = when
        self._alarm_number += 1
        heapq.heappush(self._alarms, (when, self._alarm_number, key))

    def retry(self, key: K, now: float, *, at_least: float = 0.0) -> float:
        """Count a failure and have the key run after its backoff (or `at_least`); return that delay."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(at_least, self._backoff.delay(self._failures[key], self._rng))
        self.add_later(key, now + delay)
        return delay

    def forget(self, key: K) -> None:
        """Count from zero again: the key succeeded."""
        self._failures.pop(key, None)

    def drop(self, key: K) -> None:
        """Remove what is known of a key whose object is gone; a run in progress is not stopped."""
        self._failures.pop(key, None)
        self._sleeping.pop(key, None)

    def wake(self, now: float) -> None:
        """Move the keys whose time has come to the ready ones."""
        while self._alarms and self._alarms[0][0] <= now:
            when, _, key = heapq.heappop(self._alarms)
            if self._sleeping.get(key) == when:
                self.add(key)

    def next_alarm(self) -> float | None:
        """Return when the next sleeping key is due, or None."""
        while self._alarms and self._sleeping.get(self._alarms[0][2]) != self._alarms[0][0]:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] if self._alarms else None

    def pop(self) -> K | None:
        """Take the next key, groups in turn; None when nothing may run now. Follow with `done`."""
        for _ in range(len(self._turns)):
            group = self._turns.popleft()
            keys = self._ready[group]
            if self._running_in.get(group, 0) >= self._per_group:
                self._turns.append(group)
                continue
            key = keys.popleft()
            if keys:
                self._turns.append(group)
            else:
                del self._ready[group]
            self._queued.discard(key)
            self._running[key] = group
            self._running_in[group] = self._running_in.get(group, 0) + 1
            return key
        return None

    def done(self, key: K) -> None:
        """The run that `pop` started is over."""
        group = self._running.pop(key)
        self._running_in[group] -= 1
        if not self._running_in[group]:
            del self._running_in[group]
        if key in self._again:
            self._again.discard(key)
            self._sleeping.pop(key, None)
            self._enqueue(key)

    def _enqueue(self, key: K) -> None:
        group = self._group_of(key)
        self._queued.add(key)
        if group not in self._ready:
            self._ready[group] = deque()
            self._turns.append(group)
        self._ready[group].append(key)


class WorkQueue(Generic[K]):
    """A `Backlog` with workers that wait for it."""

    def __init__(self, backlog: Backlog[K], *, clock: Callable[[], float] = anyio.current_time) -> None:
        self.backlog = backlog
        self._clock = clock
        self._changed = anyio.Event()

    def add(self, key: K) -> None:
        """Have the key run soon."""
        self.backlog.add(key)
        self._notify()

    def add_later(self, key: K, delay: float) -> None:
        """Have the key run in `delay` seconds at the latest."""
        self.backlog.add_later(key, self._clock() + delay)
        self._notify()

    def retry(self, key: K, *, at_least: float = 0.0) -> float:
        """Count a failure of the key and have it run after its backoff; return the delay."""
        delay = self.backlog.retry(key, self._clock(), at_least=at_least)
        self._notify()
        return delay

    async def run(self, work: Callable[[K], Awaitable[None]], *, workers: int) -> None:
        """Work until cancelled. `work` must not raise: it decides by `retry` what happens next."""
        async with anyio.create_task_group() as group:
            for number in range(workers):
                group.start_soon(self._worker, work, name=f"worker {number}")

    async def _worker(self, work: Callable[[K], Awaitable[None]]) -> None:
        while True:
            key = await self._next()
            try:
                await work(key)
            finally:
                self.backlog.done(key)
                self._notify()

    async def _next(self) -> K:
        while True:
            now = self._clock()
            self.backlog.wake(now)
            key = self.backlog.pop()
            if key is not None:
                return key
            alarm = self.backlog.next_alarm()
            changed = self._changed
            with anyio.move_on_after(None if alarm is None else max(0.0, alarm - now)):
                await changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
