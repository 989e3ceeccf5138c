"""Tasks that belong to a hub and to no block of code.

A hub can be made by a plain constructor and ended by `close()`, so no anyio task group can own what runs for it. These
are tasks of asyncio itself: kept alive here, their crashes logged, awaited or cancelled when the hub closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

__all__ = ["Background"]

T = TypeVar("T")


class Background:
    """The running tasks of one hub."""

    def __init__(self, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._log = log

    def spawn(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run something in the background until it ends; a crash is logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("a background task of streamhold crashed: %s", task.get_name(), exc_info=error)

    async def settle(self, timeout: float) -> bool:
        """Wait until all have ended, except the one that asks; False when the time was not enough."""
        with anyio.move_on_after(timeout):
            while others := self._others():
                await asyncio.wait(others)
            return True
        return not self._others()

    async def cancel(self) -> None:
        """Cancel all that still run, except the one that asks, and wait for their end."""
        others = self._others()
        for task in others:
            task.cancel()
        if others:
            # A task that will not be cancelled must not keep close() from ending.
            await asyncio.wait(others, timeout=1.0)

    def _others(self) -> set[asyncio.Task[Any]]:
        return self._tasks - {asyncio.current_task()}
