"""One delivery: what an entry says, who it is for, and how it ends (C-3, C-15 to C-17).

Pure: the state of a settlement and the decisions about it; who carries them out is the backend's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "GROUP_FIELD",
    "GivenUp",
    "Settlement",
    "State",
    "dead_letter",
    "entry_order",
    "may_retry",
    "read_fields",
    "retry_fields",
]

EVENT_FIELD = b"event"
GROUP_FIELD = b"streamhold-group"
"""The entry field that says for which group alone a republished entry is; the reference ignores it."""


class State(IntEnum):
    """How far the settlement of a delivery has come."""

    OPEN = 0
    SETTLING = 1
    SETTLED = 2


class Settlement:
    """Lets the first of `ack` and `nack` win, and a failed one be repeated (C-15)."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = State.OPEN

    def begin(self) -> bool:
        """Claim the settlement; False when another call has it."""
        if self.state is not State.OPEN:
            return False
        self.state = State.SETTLING
        return True

    def finish(self) -> None:
        """It is settled for good."""
        self.state = State.SETTLED

    def reopen(self) -> None:
        """The attempt failed: the next call may try again."""
        if self.state is State.SETTLING:
            self.state = State.OPEN


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Why an event is not delivered again."""

    reason: str
    group: str
    attempts: int
    time: str


def may_retry(attempt: int, max_attempts: int) -> bool:
    """Whether an event that failed at this attempt may be delivered once more; a cap of 0 is none."""
    return max_attempts == 0 or attempt < max_attempts


def read_fields(fields: Sequence[bytes]) -> tuple[bytes | None, bytes | None]:
    """The event's JSON and the group an entry is for, each None when absent; of a repeated field the last counts."""
    if len(fields) == 2:  # what nearly every entry looks like
        return (
            (fields[1], None) if fields[0] == EVENT_FIELD else (None, fields[1] if fields[0] == GROUP_FIELD else None)
        )
    event = group = None
    for at in range(0, len(fields) - 1, 2):
        if fields[at] == EVENT_FIELD:
            event = fields[at + 1]
        elif fields[at] == GROUP_FIELD:
            group = fields[at + 1]
    return event, group


def retry_fields(fields: Sequence[bytes], event: bytes, group: str) -> list[bytes]:
    """The fields of the entry that is written for another try: the event, the group, and all unknown ones (C-3)."""
    return [EVENT_FIELD, event, GROUP_FIELD, group.encode(), *_unknown(fields, (EVENT_FIELD, GROUP_FIELD))]


def dead_letter(fields: Sequence[bytes], why: GivenUp) -> list[bytes]:
    """The fields of a dead letter: the event as it was read and why it ended here (C-17)."""
    event, _ = read_fields(fields)
    told = {
        EVENT_FIELD: event or b"",
        b"reason": why.reason.encode(errors="backslashreplace"),
        b"group": why.group.encode(),
        b"attempts": b"%d" % why.attempts,
        b"time": why.time.encode(),
    }
    return [part for field in told.items() for part in field] + _unknown(fields, (*told, GROUP_FIELD))


def entry_order(entry_id: bytes) -> tuple[int, int]:
    """What to compare entry ids by."""
    ms, _, sequence = entry_id.partition(b"-")
    return int(ms), int(sequence or 0)


def _unknown(fields: Sequence[bytes], known: Sequence[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    for at in range(0, len(fields) - 1, 2):
        if fields[at] not in known:
            kept += fields[at : at + 2]
    return kept
