"""What holds for every test: asyncio as the loop, none of our code blocks it, hypothesis without a stopwatch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

# Deadlines per example fail on a machine that does something else too; the suite has its own timeout.
settings.register_profile("streamhold", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamhold")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the loop that the library is for."""
    return "asyncio"


@pytest.fixture(autouse=True)
def no_blocking_calls() -> Iterator[None]:
    """A call that blocks the event loop from our own code raises; tests themselves may block."""
    with blockbuster_ctx(scanned_modules=["streamhold", "streamhold_operator"]) as guard:
        for function in guard.functions.values():
            # `connect()` is a plain function that reads a handful of small files once, before anything runs.
            function.can_block_in("streamhold/_hub.py", "connect")
        yield
