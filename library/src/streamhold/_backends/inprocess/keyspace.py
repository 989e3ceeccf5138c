"""What an in-process server holds: values by key, when they end, and who waits for them.

An expired key is gone at the next command, whichever it is, so nothing piles up and no timer runs.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias

import anyio

from streamhold._backends.inprocess.streams import NOTHING, EntryId, Group, Stream, write_id

__all__ = ["Clock", "Keyspace", "Refused", "steady_clock"]

Clock: TypeAlias = Callable[[], float]
"""Seconds since 1970."""


def steady_clock() -> Clock:
    """The time of day as it was when this was called, and from then on as the monotonic clock counts."""
    ahead = time.time() - time.monotonic()
    return lambda: ahead + time.monotonic()


class Refused(Exception):
    """The server's refusal, in the words of Redis: the first one is its code."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


class Keyspace:
    """Strings and streams by key."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._newest = NOTHING
        self._values: dict[bytes, bytes | Stream] = {}
        self._ends: dict[bytes, float] = {}
        self._due: list[tuple[float, bytes]] = []
        """A heap with at least one moment, not later than its end, for each key that has an end."""
        self._queued: dict[bytes, float] = {}
        """The earliest moment that the heap has for a key."""
        self._waiting: dict[bytes, dict[anyio.Event, None]] = {}

    # ---- values ----

    def exists(self, key: bytes) -> bool:
        """Whether there is anything."""
        return key in self._values

    def text(self, key: bytes) -> bytes | None:
        """A string; None when there is nothing.

        Raises:
            Refused: WRONGTYPE.
        """
        value = self._values.get(key)
        if isinstance(value, Stream):
            raise _wrong_type(key)
        return value

    def number(self, key: bytes) -> int:
        """A string as a number; 0 for anything that is none."""
        value = self.text(key) or b""
        return int(value) if value.isdigit() else 0

    def put(self, key: bytes, value: bytes, ttl_ms: int | None = None) -> None:
        """Set a string, whatever was there before."""
        self.delete(key)
        self._values[key] = value
        if ttl_ms is not None:
            self.expire(key, ttl_ms)

    def stream(self, key: bytes) -> Stream | None:
        """A stream; None when there is nothing.

        Raises:
            Refused: WRONGTYPE.
        """
        value = self._values.get(key)
        if isinstance(value, bytes):
            raise _wrong_type(key)
        return value

    def make_stream(self, key: bytes) -> Stream:
        """A stream, made if there is nothing.

        Raises:
            Refused: WRONGTYPE.
        """
        stream = self.stream(key)
        if stream is None:
            stream = self._values[key] = Stream()
        return stream

    def group(self, key: bytes, name: bytes, how: str = "") -> tuple[Stream, Group]:
        """A group and its stream.

        Raises:
            Refused: NOGROUP, WRONGTYPE.
        """
        stream = self.stream(key)
        group = stream.groups.get(name) if stream is not None else None
        if stream is None or group is None:
            raise Refused(f"NOGROUP No such key '{_shown(key)}' or consumer group '{_shown(name)}'{how}")
        return stream, group

    def append(self, key: bytes, fields: list[bytes], max_length: int) -> bytes:
        """Add an entry to a stream; at most `max_length` stay, 0 keeps all."""
        stream = self.make_stream(key)
        entry = self._next_id()
        stream.append(entry, fields)
        if max_length:
            stream.trim(max_length)
        self.changed(key)
        return write_id(entry)

    def _next_id(self) -> EntryId:
        """An id larger than all before, in any stream: one that is made anew must not repeat those of the last."""
        now_ms, (last_ms, number) = int(self.clock() * 1000), self._newest
        self._newest = (now_ms, 0) if now_ms > last_ms else (last_ms, number + 1)
        return self._newest

    def delete(self, key: bytes) -> bool:
        """Remove a key; False when there is none."""
        self._ends.pop(key, None)
        if self._values.pop(key, None) is None:
            return False
        self.changed(key)
        return True

    # ---- time ----

    def expire(self, key: bytes, ttl_ms: int) -> bool:
        """Let a key end in a while; False when there is none."""
        if key not in self._values:
            return False
        if ttl_ms <= 0:
            return self.delete(key)
        at = self._ends[key] = self.clock() + ttl_ms / 1000
        self._queue(key, at)
        return True

    def ttl_ms(self, key: bytes) -> int:
        """Milliseconds until a key ends; -1 never, -2 there is none."""
        if key not in self._values:
            return -2
        at = self._ends.get(key)
        return -1 if at is None else max(0, round((at - self.clock()) * 1000))

    def drop_expired(self) -> None:
        """Remove what has ended."""
        now = self.clock() if self._due else 0.0
        while self._due and self._due[0][0] <= now:
            at, key = heapq.heappop(self._due)
            if self._queued.get(key) == at:
                del self._queued[key]
            end = self._ends.get(key)
            if end is not None and end <= now:
                self.delete(key)
            elif end is not None:
                self._queue(key, end)

    def _queue(self, key: bytes, at: float) -> None:
        """Look at a key again at this moment, unless that happens earlier anyway."""
        if at < self._queued.get(key, float("inf")):
            self._queued[key] = at
            heapq.heappush(self._due, (at, key))

    # ---- waiting ----

    def wait_for(self, keys: Iterable[bytes], event: anyio.Event) -> None:
        """Set an event at the next change of one of these keys."""
        for key in keys:
            self._waiting.setdefault(key, {})[event] = None

    def wait_no_more(self, keys: Iterable[bytes], event: anyio.Event) -> None:
        """Forget who waits."""
        for key in keys:
            waiting = self._waiting.get(key, {})
            waiting.pop(event, None)
            if not waiting:
                self._waiting.pop(key, None)

    def changed(self, key: bytes) -> None:
        """Wake who waits for a key."""
        for event in self._waiting.get(key, ()):
            event.set()


def _wrong_type(key: bytes) -> Refused:
    return Refused(f"WRONGTYPE Operation against a key holding the wrong kind of value: '{_shown(key)}'")


def _shown(name: bytes) -> str:
    return name.decode(errors="backslashreplace")
