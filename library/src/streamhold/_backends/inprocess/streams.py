"""Streams in memory: entries, groups, and what each group has pending.

The rules are those of Redis streams, which the contract is written on: an entry is delivered to one consumer of each
group, and stays pending for it until it is acknowledged, also when it was trimmed meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TypeAlias

__all__ = ["NOTHING", "EntryId", "Group", "Pending", "Stream", "entry_id", "write_id"]

EntryId: TypeAlias = tuple[int, int]
"""Milliseconds and a number within them."""

NOTHING: EntryId = (0, 0)
"""Before the first entry."""


def entry_id(text: bytes, sequence: int = 0) -> EntryId:
    """Read an id; `sequence` stands for a missing second part.

    Raises:
        ValueError: it is none.
    """
    ms, dash, number = text.partition(b"-")
    return int(ms), int(number) if dash else sequence


def write_id(entry: EntryId) -> bytes:
    """An id as text."""
    return b"%d-%d" % entry


class Pending:
    """An entry that was delivered and not acknowledged."""

    __slots__ = ("consumer", "count", "delivered_at")

    def __init__(self, consumer: bytes, delivered_at: float) -> None:
        self.consumer = consumer
        self.delivered_at = delivered_at
        """When it was last delivered; seconds of the server's clock."""
        self.count = 1
        """How often it was delivered."""


class Group:
    """One consumer group."""

    __slots__ = ("consumers", "pending", "position")

    def __init__(self, position: EntryId) -> None:
        self.position = position
        """The last entry that was delivered to it for the first time."""
        self.pending: dict[EntryId, Pending] = {}
        """In the order of the entries: they are delivered in it, and claiming changes them where they are."""
        self.consumers: set[bytes] = set()

    def pending_between(self, first: EntryId, last: EntryId) -> Iterator[tuple[EntryId, Pending]]:
        """What is pending from `first` to `last`, both included."""
        if first == last:
            found = self.pending.get(first)
            if found is not None:
                yield first, found
            return
        for entry, pending in self.pending.items():
            if first <= entry <= last:
                yield entry, pending

    def remove_consumer(self, consumer: bytes) -> int:
        """Forget a consumer with what is pending for it; returns how much that was."""
        theirs = [entry for entry, pending in self.pending.items() if pending.consumer == consumer]
        for entry in theirs:
            del self.pending[entry]
        self.consumers.discard(consumer)
        return len(theirs)


class Stream:
    """Entries in order, and the groups that read them."""

    __slots__ = ("_ids", "fields", "groups", "last")

    def __init__(self) -> None:
        self._ids: list[EntryId] = []
        self.fields: dict[EntryId, list[bytes]] = {}
        """Names and values of each entry, one after the other."""
        self.last = NOTHING
        """The newest id that was ever given."""
        self.groups: dict[bytes, Group] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def append(self, entry: EntryId, fields: list[bytes]) -> None:
        """Add an entry; its id must be larger than all before."""
        self.last = entry
        self._ids.append(entry)
        self.fields[entry] = fields

    def trim(self, length: int) -> int:
        """Drop the oldest entries beyond a length; returns how many."""
        surplus = max(0, len(self._ids) - length)
        for entry in self._ids[:surplus]:
            del self.fields[entry]
        del self._ids[:surplus]
        return surplus

    def between(self, first: EntryId, last: EntryId, count: int | None = None) -> list[EntryId]:
        """The entries from `first` to `last`, both included; at most `count`."""
        low, high = bisect_left(self._ids, first), bisect_right(self._ids, last)
        return self._ids[low : high if count is None else min(high, low + count)]

    def after(self, position: EntryId, count: int | None = None) -> list[EntryId]:
        """The entries behind a position; at most `count`."""
        low = bisect_right(self._ids, position)
        return self._ids[low : None if count is None else low + count]
