"""Backoff: how long to wait before the next try.

Pure: a delay is a function of how many tries failed and of one random draw, so tests seed the draw and callers keep no
clock here. Jitter takes away from the delay, never adds: `limit` is a promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

__all__ = ["Backoff"]

_DOUBLINGS_THAT_FIT_A_FLOAT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays that grow by `factor` from `first` to `limit`, each shortened at random."""

    first: float = 0.05
    """Seconds before the second try, without jitter."""
    factor: float = 2.0
    """What each further failure multiplies the delay with."""
    limit: float = 2.0
    """No delay is longer, in seconds."""
    jitter: float = 0.5
    """The share of a delay that chance may take away, from 0 to 1."""

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.limit:
            raise ValueError(f"first={self.first!r}: must be above 0 and at most limit={self.limit!r}")
        if self.factor < 1:
            raise ValueError(f"factor={self.factor!r}: must be at least 1")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter={self.jitter!r}: must be at least 0 and below 1, or a delay could be none")

    def delay(self, failures: int, draw: float) -> float:
        """The delay after so many failures in a row.

        Args:
            failures: at least 1.
            draw: a random number, at least 0 and below 1.

        Raises:
            ValueError: nothing has failed yet.
        """
        if failures < 1:
            raise ValueError(f"failures={failures!r}: must be at least 1")
        try:
            grown = self.first * self.factor ** min(failures - 1, _DOUBLINGS_THAT_FIT_A_FLOAT)
        except OverflowError:
            grown = self.limit
        return min(grown, self.limit) * (1 - self.jitter * draw)

    def delays(self, random: Random) -> Iterator[float]:
        """The delays after the first, second, third … failure, without end."""
        failures = 0
        while True:
            failures += 1
            yield self.delay(failures, random.random())
