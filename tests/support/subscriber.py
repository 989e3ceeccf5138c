"""Subscribers that remember what they were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from streamhold.types import Event, Settle

__all__ = ["Recorder", "an_event"]


def an_event(data: Any = None, **members: Any) -> Event:
    """An event to publish."""
    return {"type": "order.created", "data": data, "runId": "run-1", **members}


class Recorder:
    """A callback that remembers its events and acks, or does what it is told."""

    def __init__(self, act: Callable[[Event, Settle, Settle], Any] | None = None) -> None:
        self.events: list[Event] = []
        self.settles: list[tuple[Settle, Settle]] = []
        self._act = act

    @property
    def data(self) -> list[Any]:
        """The data of what came, in order."""
        return [event.get("data") for event in self.events]

    @property
    def attempts(self) -> list[int]:
        """The attempts of what came, in order."""
        return [event["deliveryAttempt"] for event in self.events]

    async def __call__(self, event: Event, ack: Settle, nack: Settle) -> None:
        self.events.append(event)
        self.settles.append((ack, nack))
        if self._act is None:
            await ack()
        else:
            outcome = self._act(event, ack, nack)
            if outcome is not None:
                await outcome

    @classmethod
    def silent(cls) -> Recorder:
        """One that settles nothing."""
        return cls(lambda event, ack, nack: None)

    @classmethod
    def nacking(cls) -> Recorder:
        """One that nacks everything."""
        return cls(lambda event, ack, nack: nack())

    @classmethod
    def slow(cls, seconds: float) -> Recorder:
        """One that takes its time, then acks."""

        async def act(ack: Settle) -> None:
            await anyio.sleep(seconds)
            await ack()

        return cls(lambda event, ack, nack: act(ack))
