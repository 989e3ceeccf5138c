"""Rounds and their medians.

Two programs are only compared with each other inside one run: the sides of a case take turns, round after round, so
that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["Case", "Side", "measure"]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the programs that a case compares."""

    name: str
    run: Callable[[int], Awaitable[None]]
    """Do so many operations."""
    prepare: Callable[[int], Awaitable[None]] | None = None
    """Make ready for so many operations; not timed."""
    rate: Callable[[int], Awaitable[float]] | None = None
    """For a program that times itself: operations a second."""


@dataclass(slots=True)
class Case:
    """One thing that is measured: our side first, then what it is compared with."""

    name: str
    operations: int
    sides: Sequence[Side]
    targets: dict[str, float] = field(default_factory=dict)
    """By the name of another side: the ratio that we want to reach."""
    rates: dict[str, float] = field(default_factory=dict)
    """By side: the median of operations a second."""

    def ratio(self, other: str) -> float:
        """How often our rate holds the other's."""
        return self.rates[self.sides[0].name] / self.rates[other]


async def measure(case: Case, rounds: int, operations: int) -> None:
    """Run all sides of a case in turns and note their medians."""
    seen: dict[str, list[float]] = {side.name: [] for side in case.sides}
    for number in range(rounds + 1):
        # The first round warms up: connections, caches, the server's memory.
        amount = operations if number else max(operations // 10, 100)
        for side in case.sides:
            if side.prepare is not None:
                await side.prepare(amount)
            gc.collect()
            if side.rate is not None:
                rate = await side.rate(amount)
            else:
                started = time.perf_counter()
                await side.run(amount)
                rate = amount / (time.perf_counter() - started)
            if number:
                seen[side.name].append(rate)
    case.rates = {name: statistics.median(rates) for name, rates in seen.items()}
