"""What the demo prints: numbered steps, what was run, progress while it waits, and a summary of checks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_HEARTBEAT = 2.0


class DemoFailed(Exception):
    """A check of the demo did not hold, or something did not happen in time."""


class Console:
    """Prints the demo and keeps what was checked."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.checks: list[str] = []
        self._steps = 0
        self._colour = sys.stdout.isatty()

    def step(self, title: str) -> None:
        """Begin a step."""
        self._steps += 1
        print(f"\n{self._bold(f'{self._steps:2}. {title}')}  {self._dim(f'[{self.elapsed:.1f} s]')}", flush=True)

    def say(self, text: str) -> None:
        """Print indented lines."""
        for line in text.rstrip("\n").splitlines():
            print(f"    {line}", flush=True)

    def ran(self, command: str, output: str = "") -> None:
        """Show a command and what it printed."""
        self.say(self._dim(f"$ {command}"))
        if output:
            self.say(output)

    def check(self, holds: bool, claim: str) -> None:
        """Note a claim that was checked.

        Raises:
            DemoFailed: it does not hold.
        """
        if not holds:
            raise DemoFailed(f"not so: {claim}")
        self.checks.append(claim)
        self.say(f"{self._green('✓')} {claim}")

    def wait(
        self,
        what: str,
        condition: Callable[[], T | None],
        *,
        timeout: float,
        progress: Callable[[], str] | None = None,
    ) -> T:
        """Poll until the condition returns something true, and return that; prints progress when it changes.

        Raises:
            DemoFailed: not in time; says what was last seen.
        """
        deadline = time.monotonic() + timeout
        shown, shown_at = "", time.monotonic()
        while True:
            value = condition()
            if value:
                return value
            now = time.monotonic()
            seen = progress() if progress else ""
            if now >= deadline:
                raise DemoFailed(f"{what}: not within {timeout:g} s; last seen: {seen or value!r}")
            if now - shown_at >= _HEARTBEAT:
                line = f"… {what}: {seen}" if seen else f"… {what}"
                self.say(self._dim(f"{line} [{self.elapsed:.0f} s]" if line == shown else line))
                shown, shown_at = line, now
            time.sleep(0.05)

    def summary(self) -> None:
        """Print what was checked."""
        print(f"\n{self._bold('All of it happened')}  {self._dim(f'[{self.elapsed:.1f} s]')}", flush=True)
        for claim in self.checks:
            self.say(f"{self._green('✓')} {claim}")

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def _bold(self, text: str) -> str:
        return f"\033[1m{text}\033[0m" if self._colour else text

    def _dim(self, text: str) -> str:
        return f"\033[2m{text}\033[0m" if self._colour else text

    def _green(self, text: str) -> str:
        return f"\033[32m{text}\033[0m" if self._colour else text
