"""Wait for a condition with a deadline: the one place where tests and the demo poll.

A condition is a callable without arguments. It is met when it returns something true, which is handed back. An
`AssertionError` counts as "not yet", so a plain assert about the state that should appear is a condition too; any
other exception ends the wait at once. What was last seen goes into the error when time runs out.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


class NotInTime(AssertionError):
    """The condition was not met before the deadline; an assertion, so that a test fails and does not error."""


async def eventually(
    condition: Callable[[], T | Awaitable[T]],
    *,
    timeout: float = 10.0,
    message: str = "the condition was not met",
    interval: float = 0.02,
) -> T:
    """Poll a condition, plain or async, until it holds and return what it returned.

    Raises:
        NotInTime: the deadline passed; the message tells what was last seen.
    """
    deadline = time.monotonic() + timeout
    while True:
        seen: object
        try:
            outcome = condition()
            value = await outcome if inspect.isawaitable(outcome) else outcome
            if value:
                return value
            seen = value
        except NotInTime:
            raise
        except AssertionError as failure:
            seen = failure
        if time.monotonic() >= deadline:
            raise _too_late(timeout, message, seen)
        await anyio.sleep(interval)


def eventually_sync(
    condition: Callable[[], T],
    *,
    timeout: float = 10.0,
    message: str = "the condition was not met",
    interval: float = 0.02,
) -> T:
    """Poll a condition until it holds and return what it returned; for code without an event loop.

    Raises:
        NotInTime: the deadline passed; the message tells what was last seen.
    """
    deadline = time.monotonic() + timeout
    while True:
        seen: object
        try:
            value = condition()
            if value:
                return value
            seen = value
        except NotInTime:
            raise
        except AssertionError as failure:
            seen = failure
        if time.monotonic() >= deadline:
            raise _too_late(timeout, message, seen)
        time.sleep(interval)


def _too_late(timeout: float, message: str, seen: object) -> NotInTime:
    error = NotInTime(f"{message}: not within {timeout:g} s; last seen: {seen!r}")
    error.__cause__ = seen if isinstance(seen, BaseException) else None
    return error
