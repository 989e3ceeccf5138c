"""Conditions in kstatus form, and the one list of reasons.

`Ready` is always there. `Reconciling` is there, and True, only while the operator is still at work or tries again by
itself; `Stalled` only while nothing will change until somebody changes an object. Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum

from streamhold_operator.api.base import Condition

MESSAGE_LIMIT = 4096
"""Longer messages are cut, so that no status write is ever refused for its length."""


class Reason(StrEnum):
    """Why an object is as it is: the `reason` of its conditions and of the event that tells of the change."""

    READY = "Ready"
    SUSPENDED = "Suspended"
    PROGRESSING = "Progressing"
    CONNECTION_NOT_FOUND = "ConnectionNotFound"
    CONNECTION_NOT_ALLOWED = "ConnectionNotAllowed"
    CONNECTION_NOT_READY = "ConnectionNotReady"
    SECRET_NOT_FOUND = "SecretNotFound"
    SECRET_INVALID = "SecretInvalid"
    UNREACHABLE = "Unreachable"
    CERTIFICATE_INVALID = "CertificateInvalid"
    AUTH_FAILED = "AuthFailed"
    MISSING_RIGHTS = "MissingRights"
    LOADING = "Loading"
    READ_ONLY = "ReadOnly"
    WRONG_TOPOLOGY = "WrongTopology"
    TOPOLOGY_NOT_SUPPORTED = "TopologyNotSupported"
    CONFLICT = "Conflict"
    WRONG_TYPE = "WrongType"
    TOPIC_NOT_FOUND = "TopicNotFound"
    TOPIC_NOT_ALLOWED = "TopicNotAllowed"
    TOPIC_NOT_READY = "TopicNotReady"
    LEASE_POLICY_NOT_FOUND = "LeasePolicyNotFound"
    LEASE_POLICY_NOT_ALLOWED = "LeasePolicyNotAllowed"
    LEASE_POLICY_NOT_READY = "LeasePolicyNotReady"
    ORPHANED = "Orphaned"
    SERVER_REFUSED = "ServerRefused"
    INTERNAL_ERROR = "InternalError"


STALLED = frozenset(
    {
        Reason.CONNECTION_NOT_FOUND,
        Reason.CONNECTION_NOT_ALLOWED,
        Reason.SECRET_NOT_FOUND,
        Reason.SECRET_INVALID,
        Reason.CERTIFICATE_INVALID,
        Reason.AUTH_FAILED,
        Reason.MISSING_RIGHTS,
        Reason.WRONG_TOPOLOGY,
        Reason.TOPOLOGY_NOT_SUPPORTED,
        Reason.CONFLICT,
        Reason.WRONG_TYPE,
        Reason.TOPIC_NOT_FOUND,
        Reason.TOPIC_NOT_ALLOWED,
        Reason.LEASE_POLICY_NOT_FOUND,
        Reason.LEASE_POLICY_NOT_ALLOWED,
    }
)
"""Reasons that last until a person changes something (the operator still looks again); the others may pass."""


def build(
    previous: Sequence[Condition], reason: Reason, message: str, *, generation: int | None, now: datetime
) -> tuple[Condition, ...]:
    """Conditions that say `reason` and `message`; a condition whose status stays keeps its `lastTransitionTime`."""
    text = message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"
    wanted = [("Ready", "True" if reason is Reason.READY else "False")]
    if reason in STALLED:
        wanted.append(("Stalled", "True"))
    elif reason not in (Reason.READY, Reason.SUSPENDED):
        wanted.append(("Reconciling", "True"))
    before = {condition.type: condition for condition in previous}
    return tuple(
        Condition(
            type=kind,
            status=status,
            reason=reason.value,
            message=text,
            observed_generation=generation,
            last_transition_time=_transition_time(before.get(kind), status, now),
        )
        for kind, status in wanted
    )


def is_ready(conditions: Sequence[Condition]) -> bool:
    """Whether `Ready` is True."""
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def find(conditions: Sequence[Condition], kind: str) -> Condition | None:
    """The condition of that type, or None."""
    return next((condition for condition in conditions if condition.type == kind), None)


def timestamp(moment: datetime) -> str:
    """A moment as the API server writes it: RFC 3339, UTC, whole seconds, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _transition_time(before: Condition | None, status: str, now: datetime) -> str:
    if before is not None and before.status == status and before.last_transition_time:
        return before.last_transition_time
    return timestamp(now)
