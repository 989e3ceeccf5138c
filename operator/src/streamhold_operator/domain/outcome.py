"""How a pass over one object ends: refused with a reason, or concluded with what its status shall say.

Nothing here compares with the status before: the reconcile layer decides what is a transition and writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamhold_operator.api.conditions import Reason

__all__ = ["Outcome", "Refusal"]


class Refusal(Exception):
    """Something stands in the way. `reason` is the reason of the Ready condition, `message` tells what to do next."""

    def __init__(
        self, reason: Reason, message: str, *, retry_after: float | None = None, warnings: tuple[str, ...] = ()
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        """Seconds until another try makes sense; None: only after something changed (or at the next resync)."""
        self.warnings = warnings
        """Further things the user must hear of, one event each."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Refusal):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def _fields(self) -> tuple[object, ...]:
        return (self.reason, self.message, self.retry_after, self.warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the status of an object shall say after this pass."""

    ready: bool
    reason: Reason
    """The reason of the Ready condition."""
    message: str
    retry_after: float | None = None
    """Seconds until the next try; None: wait for a change or for the resync."""
    status: Mapping[str, object] = field(default_factory=dict)
    """Further members of the status, in camelCase."""
    repairs: tuple[str, ...] = ()
    """What had drifted and was put right: told in one event."""
    warnings: tuple[str, ...] = ()
    """What a user must hear of though it stops nothing: one event each, on transitions."""

    @classmethod
    def refused(cls, refusal: Refusal, *, status: Mapping[str, object] | None = None) -> Outcome:
        """Turn a refusal into what the status says."""
        return cls(
            ready=False,
            reason=refusal.reason,
            message=refusal.message,
            retry_after=refusal.retry_after,
            status=status or {},
            warnings=refusal.warnings,
        )
