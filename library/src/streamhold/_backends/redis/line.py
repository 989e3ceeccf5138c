"""A line to a server: at most one living link, made when somebody needs it and made anew after a loss.

All who need the link while there is none wait for the same attempt. Attempts are spaced by a jittered backoff that
outlives the callers, so a server that is down, refuses us, or accepts and hangs up is asked a few times a second at
most, whatever the number of callers. Nothing runs while nobody waits.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from random import Random

import anyio

from streamhold._backends.redis.command import LinkLost, ReplyError
from streamhold._backends.redis.endpoint import Credentials, Endpoint
from streamhold._backends.redis.link import Link
from streamhold._core.backoff import Backoff

__all__ = ["Line", "LineClosed", "Refused", "Unreachable"]

# A link that ended sooner counts as a failed attempt: a server that accepts and hangs up must not be hammered.
_WELL_AFTER = 1.0


class Unreachable(Exception):
    """No link within the deadline; the cause is the last attempt's failure, if one was made."""


class Refused(Exception):
    """The server, or its certificate, will not have us: trying again soon is of no use. The cause says why."""


class LineClosed(Exception):
    """The line was closed by this process."""


class Line:
    """Keeps one link to one server."""

    link: Link | None
    """The living link; None while there is none."""

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: Credentials,
        *,
        name: str,
        connect_timeout: float = 5.0,
        silence_limit: float | None = 5.0,
        stretch: float | None = None,
        backoff: Backoff | None = None,
        random: Random | None = None,
    ) -> None:
        """Describe the line; nothing is opened before somebody is `ready` for it. The options are those of `Link`."""
        self.endpoint = endpoint
        self.link = None
        self.closed = False
        self._credentials = credentials
        self._name = name
        self._connect_timeout, self._silence_limit, self._stretch = connect_timeout, silence_limit, stretch
        self._backoff = backoff or Backoff(first=0.05, limit=1.0)
        self._random = random or Random()
        self._failures = 0
        self._failure: Exception | None = None
        self._not_before = 0.0
        self._linked_at = 0.0
        self._waiters: deque[asyncio.Future[Link]] = deque()
        self._trying: asyncio.Task[None] | None = None
        self._leaving: set[Link] = set()  # retired, answering what they accepted
        self._ending: set[Link] = set()  # closed, not yet known to be gone

    async def ready(self, deadline: float) -> Link:
        """The living link, waiting for one until the deadline (on the loop's clock).

        Raises:
            Unreachable: there was none in time.
            Refused: the server answered that it will not have us.
            LineClosed: the line is closed.
        """
        if self.closed:
            raise LineClosed
        if self.link is not None:
            return self.link
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Link] = loop.create_future()
        self._waiters.append(waiter)
        if self._trying is None:
            # All who wait share it; it ends with the last of them or by aclose(). No caller's task group could own it.
            self._trying = asyncio.create_task(self._try_until_linked(), name=f"streamhold connecting {self._name}")
        with anyio.move_on_after(max(0.0, deadline - loop.time())):
            return await waiter
        raise Unreachable from self._failure

    def retire(self, link: Link, why: Exception) -> None:
        """Use this link no more: its server cannot serve us (a replica now); what it accepted is still answered."""
        if link is self.link:
            self.link = None
            self._count_failure(why, not_well=True)
            self._leaving.add(link)
            link.retire()

    def close(self) -> None:
        """Close the link and fail all who wait, now."""
        self.closed = True
        if self._trying is not None:
            self._trying.cancel()
        self._settle(lambda waiter: waiter.set_exception(LineClosed()))
        if self.link is not None:
            self._leaving.add(self.link)
            self.link = None
        self._ending |= self._leaving
        for link in self._ending:
            link.close()

    async def aclose(self) -> None:
        """Close, and wait for the end. Idempotent; ends while the server is down."""
        self.close()
        await asyncio.gather(*(link.aclose() for link in self._ending))
        self._ending.clear()
        if self._trying is not None:
            await asyncio.wait([self._trying])

    # ---- attempts ----

    async def _try_until_linked(self) -> None:
        try:
            while await self._wait_for_the_next_attempt():
                link = self._new_link()
                try:
                    await link.connect()
                except Exception as exc:
                    self._count_failure(exc, not_well=True)
                    if _is_lasting(exc):
                        self._settle(lambda waiter, exc=exc: waiter.set_exception(_refused(exc)))  # type: ignore[misc]
                else:
                    self.link = link
                    self._linked_at = asyncio.get_running_loop().time()
                    self._settle(lambda waiter, link=link: waiter.set_result(link))  # type: ignore[misc]
                    return
        finally:
            self._trying = None

    async def _wait_for_the_next_attempt(self) -> bool:
        """Sleep as long as the backoff says; False when nobody is left to connect for."""
        delay = self._not_before - asyncio.get_running_loop().time()
        if delay > 0:
            await anyio.sleep(delay)
        while self._waiters and self._waiters[0].done():
            self._waiters.popleft()
        return bool(self._waiters)

    def _new_link(self) -> Link:
        return Link(
            self.endpoint,
            self._credentials,
            name=self._name,
            connect_timeout=self._connect_timeout,
            silence_limit=self._silence_limit,
            stretch=self._stretch,
            on_lost=self._lost,
        )

    def _settle(self, settle: Callable[[asyncio.Future[Link]], None]) -> None:
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                settle(waiter)

    def _lost(self, link: Link) -> None:
        self._leaving.discard(link)
        if link is self.link:
            self.link = None
            lived = asyncio.get_running_loop().time() - self._linked_at
            self._count_failure(LinkLost(f"the connection ended after {lived:.1f} s", sent=True), lived < _WELL_AFTER)

    def _count_failure(self, failure: Exception, not_well: bool) -> None:
        """Say when the next attempt may be made: at once after a link that lived well, else later and later."""
        self._failure = failure
        if not not_well:
            self._failures = 0
            self._not_before = 0.0
            return
        self._failures += 1
        delay = self._backoff.delay(self._failures, self._random.random())
        self._not_before = asyncio.get_running_loop().time() + delay


def _is_lasting(failure: Exception) -> bool:
    """Whether the answer would be the same a second later."""
    if isinstance(failure, ReplyError):
        return "max number of clients" not in failure.message and failure.code not in {"LOADING", "MASTERDOWN"}
    return isinstance(failure, ssl.SSLCertVerificationError)


def _refused(cause: Exception) -> Refused:
    refused = Refused()
    refused.__cause__ = cause
    return refused
