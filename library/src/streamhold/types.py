"""The contract in types: events, callbacks, and the two protocols that a backend offers.

Detection is structural: whatever has the methods is one, whether or not it inherits from anything here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict

__all__ = [
    "Callback",
    "Event",
    "EventMembers",
    "LeaseGrant",
    "LeaseProvider",
    "PubSub",
    "Settle",
    "StartFrom",
]

Event: TypeAlias = dict[str, Any]
"""One event as it was read: a plain dict with the members of `EventMembers` and any others the publisher wrote.

Any of `type`, `data`, `runId` and `createdAt` may be missing or None when another program wrote it; `deliveryAttempt`
is always there.
"""


class EventMembers(TypedDict, total=False):
    """The members of an event that have a meaning (C-2)."""

    type: str
    data: Any
    runId: str
    id: str
    """UUID, set by the library at publish; the same in every redelivery."""
    createdAt: str
    """ISO-8601 UTC with three decimals and `Z`, set by the library at publish."""
    deliveryAttempt: int
    """1 at first, one more with each redelivery."""
    index: int


StartFrom: TypeAlias = Literal["earliest", "latest"]
"""Where a new group begins: at the stream's first entry, or behind its last."""

Settle: TypeAlias = Callable[[], Awaitable[None]]
"""`ack` or `nack` of one delivery: calling it is enough, awaiting it waits for the server and raises what failed.

The first of the two wins; further calls change nothing, unless the first failed. In a plain function, which runs in a
worker thread, the call itself waits and raises. What a call returns can be made a task of; type checkers are told less,
so that they do not demand that it is awaited.
"""

Callback: TypeAlias = Callable[[Event, Settle, Settle], Awaitable[object] | object]
"""A subscriber: called with the event, its `ack` and its `nack`. An exception is a nack.

An async function runs on the event loop, a plain one in a worker thread.
"""


class LeaseGrant(NamedTuple):
    """The answer to an attempt to acquire a lease."""

    acquired: bool
    """Whether the caller holds it now."""
    owner: str | None
    """Who holds it: the caller, or whoever was first."""
    token: int | None = None
    """The fencing token of the holding; None when it was not acquired or the backend has none."""


class PubSub(Protocol):
    """Durable publish and subscribe."""

    @property
    def supported_modes(self) -> tuple[str, ...]:
        """How events reach subscribers: some of `pull` and `push`."""
        ...

    async def publish(self, topic: str, event: Mapping[str, Any], local_only: bool = False) -> None:
        """Publish one event; with `local_only` to the subscribers of this process alone."""
        ...

    async def subscribe(
        self,
        topic: str,
        callback: Callback,
        group: str | None = None,
        start_from: StartFrom = "earliest",
        batch: Any = None,
    ) -> None:
        """Call back for each event: as one of a group, or, without a group, for every event."""
        ...

    async def unsubscribe(self, topic: str, callback: Callback) -> None:
        """End a subscription; an unknown one is a no-op."""
        ...

    async def flush(self) -> None:
        """Wait for the publishes in flight."""
        ...

    async def clear_topic(self, topic: str) -> None:
        """Delete the topic's events and groups; never raises for what the server answers."""
        ...

    async def close(self) -> None:
        """Stop everything and free all connections; idempotent."""
        ...


class LeaseProvider(Protocol):
    """Leases: at most one owner of a key at a time (C-40 to C-44)."""

    async def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> LeaseGrant:
        """Take a free lease, or refresh one's own."""
        ...

    async def get_lease_owner(self, key: str) -> str | None:
        """Return the owner, None when it is free."""
        ...

    async def release_lease(self, key: str, owner: str) -> None:
        """Free it if `owner` holds it."""
        ...

    async def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        """Refresh it; False when `owner` does not hold it any more."""
        ...

    async def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        """Swap the owner in one step; False when `from_owner` does not hold it any more."""
        ...
