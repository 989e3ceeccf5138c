"""What keeps the topics and leases of a backend: a Redis server, or something in this process that answers alike.

Everything above it (reading, settling, reclaiming, leases) is written on these calls alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from streamhold._backends.redis.command import Arg, Prepared, Reply
    from streamhold._backends.redis.scripts import Script

__all__ = ["Store", "StoreReader"]


class Store(Protocol):
    """Runs commands, each as one atomic step; `RedisClient` says more about each call."""

    timeout: float
    """Seconds that a call may take unless it says otherwise."""
    may_unblock: bool
    """Whether CLIENT UNBLOCK is worth a try."""

    async def execute(self, *args: Arg, timeout: float | None = None, idempotent: bool = False) -> Reply:
        """Run one command."""
        ...

    async def execute_prepared(
        self, prepared: Prepared, last: bytes, *, timeout: float | None = None, idempotent: bool = False
    ) -> Reply:
        """Run a prepared command, or transaction, with its last argument."""
        ...

    async def run_script(
        self,
        script: Script,
        keys: Sequence[Arg],
        args: Sequence[Arg] = (),
        *,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> Reply:
        """Run a script."""
        ...

    async def open_reader(self, name: str) -> StoreReader:
        """A way of its own for commands that block."""
        ...

    async def aclose(self) -> None:
        """End all calls; idempotent."""
        ...


class StoreReader(Protocol):
    """Runs commands that block, one at a time."""

    @property
    def connection_id(self) -> int | None:
        """What CLIENT UNBLOCK calls it now; None while it has no connection."""
        ...

    async def connect(self) -> None:
        """Connect now unless there is a connection."""
        ...

    async def execute(self, *args: Arg, block: float) -> Reply:
        """Run one command that blocks for so many seconds at most."""
        ...

    async def aclose(self) -> None:
        """End a call under way; idempotent."""
        ...
