"""Keeping what is in flight: from siblings while it is worked on, from handlers that hold it too long (C-18, C-20).

The server starts an entry's idle clock when it is read, not when its handler starts. So entries that are buffered or
with a running handler are refreshed well before `reclaim_idle_ms`; one whose handler returned without settling is not:
a sibling may take it over. Both timers run only while something is in flight.

Not guaranteed: a process whose event loop stands still for longer than the idle time loses its entries to a sibling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from streamhold._backends.base import Delivery, Outcome
from streamhold._core.delivery import State
from streamhold._core.options import TopicSettings
from streamhold.errors import BackendError, StreamholdError

if TYPE_CHECKING:
    from streamhold._backends.redis.attachment import Shared

__all__ = ["Keeper"]

_SHORTEST_BEAT = 0.005
Hold: TypeAlias = "Callable[[Sequence[bytes]], Awaitable[set[bytes]]]"


class Keeper:
    """The two timers of one attachment."""

    def __init__(
        self, in_flight: dict[bytes, Delivery], settings: TopicSettings, shared: Shared, hold: Hold | None
    ) -> None:
        """Watch deliveries.

        Args:
            in_flight: what is not settled yet; kept by the attachment.
            settings: of the topic.
            shared: what the parts of the hub share.
            hold: refreshes entries at the server; None when nobody could take them over.
        """
        self._in_flight = in_flight
        self._shared = shared
        self._hold = hold
        self._every = max(_SHORTEST_BEAT, settings.reclaim_idle_ms / 4000)
        self._limit = settings.in_flight_timeout_ms / 1000
        self._beat: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._stopped = False
        self._known: set[bytes] = set()

    def taken(self) -> None:
        """Something is in flight: start the heartbeat if it does not run."""
        if self._beat is None and self._hold is not None and not self._stopped:
            self._known = set()
            self._beat = asyncio.get_running_loop().call_later(self._every, self._refresh)

    def started(self, delivery: Delivery) -> None:
        """A handler has it now."""
        if self._limit and self._watch is None and not self._stopped:
            self._watch = asyncio.get_running_loop().call_later(self._limit, self._look)

    def extend(self, delivery: Delivery) -> Outcome:
        """Reset both clocks of a delivery."""
        delivery.since = asyncio.get_running_loop().time()
        if self._hold is None:
            return Outcome.nothing()
        outcome = Outcome()
        self._shared.background.spawn(self._refresh_one(delivery, outcome))
        return outcome

    def stop(self) -> None:
        """Stop the timers for good."""
        self._stopped = True
        for timer in (self._beat, self._watch):
            if timer is not None:
                timer.cancel()

    # ---- heartbeat ----

    def _refresh(self) -> None:
        """Refresh what has been here since the last beat; what came after it is young enough."""
        self._beat = None
        if not self._in_flight:
            return
        held = {entry_id for entry_id, delivery in self._in_flight.items() if delivery.held}
        old = held & self._known
        self._known = held
        self._beat = asyncio.get_running_loop().call_later(self._every, self._refresh)
        if old and self._hold is not None:
            self._shared.background.spawn(self._refresh_all(sorted(old), self._hold))

    async def _refresh_all(self, ids: list[bytes], hold: Hold) -> None:
        try:
            lost = await hold(ids)
        except BackendError as error:
            if error.code != "NOGROUP":  # then there is nothing pending that could be taken over
                self._shared.log.warning("keeping %d entries from being taken over failed: %s", len(ids), error)
            return
        except StreamholdError:  # closing
            return
        for entry_id in lost:
            delivery = self._in_flight.get(entry_id)
            if delivery is not None and delivery.state is State.OPEN:
                delivery.held = False
                self._shared.log.warning(
                    "%s: entry %s was taken over by another consumer while it is handled here",
                    delivery.topic, entry_id.decode(),
                )  # fmt: skip

    async def _refresh_one(self, delivery: Delivery, outcome: Outcome) -> None:
        assert self._hold is not None
        try:
            await self._hold([delivery.entry_id])
        except StreamholdError as error:
            outcome.fail(error)
        else:
            outcome.succeed()

    # ---- in-flight timeout ----

    def _look(self) -> None:
        """Nack what its handler has held for too long; come back when the next may be due."""
        self._watch = None
        now = asyncio.get_running_loop().time()
        next_due = None
        for delivery in list(self._in_flight.values()):
            if not delivery.since or delivery.state is not State.OPEN:
                continue
            due = delivery.since + self._limit
            if due <= now:
                self._shared.log.warning(
                    "%s: event %s is in its handler for more than %g s, nacking", delivery.topic,
                    delivery.event.get("id"), self._limit,
                )  # fmt: skip
                delivery.nack(f"in flight for more than {self._limit:g} s")
            else:
                next_due = due if next_due is None else min(next_due, due)
        if next_due is not None and not self._stopped:
            self._watch = asyncio.get_running_loop().call_at(next_due, self._look)
