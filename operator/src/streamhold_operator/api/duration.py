"""Durations as the custom resources write them: `250ms`, `30s`, `15m`, `1h30m`.

A duration is whole numbers with the units h, m, s, ms, each at most once and the largest first. That is a subset of
what the API server's CEL `duration()` reads, so the CRDs' rules and this module agree on every accepted text. Pure.
"""

from __future__ import annotations

import re

PATTERN = "^([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,12}ms)?$"
"""Matches the empty text too. The digits are bounded so that no sum overflows 64 bits of nanoseconds."""

MAX_LENGTH = 40
_SHAPE = re.compile(r"(?:([0-9]{1,5})h)?(?:([0-9]{1,7})m)?(?:([0-9]{1,9})s)?(?:([0-9]{1,12})ms)?", re.ASCII)
_UNITS_MS = (3_600_000, 60_000, 1_000, 1)


def to_ms(text: str) -> int:
    """Read a duration as milliseconds.

    Raises:
        ValueError: the text is not a duration; the message says what one looks like.
    """
    found = _SHAPE.fullmatch(text)
    if not text or found is None:
        raise ValueError(
            f"{text!r} is not a duration: write whole numbers with h, m, s or ms, such as 250ms, 30s or 1h30m"
        )
    return sum(int(count) * unit for count, unit in zip(found.groups(), _UNITS_MS, strict=True) if count)


def to_seconds(text: str) -> float:
    """Read a duration as seconds.

    Raises:
        ValueError: as `to_ms`.
    """
    return to_ms(text) / 1000


def format_ms(milliseconds: int) -> str:
    """Write milliseconds as the shortest duration that `to_ms` reads back as the same number.

    Raises:
        ValueError: the number is negative.
    """
    if milliseconds < 0:
        raise ValueError(f"{milliseconds} ms is negative: a duration is 0s or longer")
    parts = []
    rest = milliseconds
    for unit, name in zip(_UNITS_MS, ("h", "m", "s", "ms"), strict=True):
        count, rest = divmod(rest, unit)
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts) or "0s"
