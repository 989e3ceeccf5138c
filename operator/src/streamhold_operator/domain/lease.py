"""LeasePolicy: its claim on a family of lease keys. Leases are made by the library; nothing is provisioned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from streamhold_operator.api.conditions import Reason
from streamhold_operator.api.v1alpha1.leasepolicy import LeasePolicy
from streamhold_operator.domain.actions import Action, RegisterClaim, RemoveClaim
from streamhold_operator.domain.claims import Claim, OwnerRecord, Owners, area_claim, lease_claim
from streamhold_operator.domain.outcome import Outcome, Refusal

__all__ = ["Observed", "Plan", "Want", "claims", "conclude", "plan", "plan_removal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a LeasePolicy asks for."""

    record: OwnerRecord
    """With the claims from `claims`."""
    prefix: str
    """The effective key prefix."""
    keys: str
    """What the lease keys start with."""

    @classmethod
    def of(cls, policy: LeasePolicy, *, prefix: str, cluster: str) -> Self:
        """Return what a LeasePolicy asks for, under this key prefix and in the cluster with this id."""
        keys = policy.spec.effective_keys(policy.metadata.name)
        record = OwnerRecord.of(policy, cluster=cluster, claims=claims(prefix, keys))
        return cls(record=record, prefix=prefix, keys=keys)

    @property
    def key(self) -> str:
        """What the leases' Redis keys start with."""
        return f"{self.prefix}:lease:{self.keys}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is there."""

    owners: Owners


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do."""

    actions: tuple[Action, ...] = ()
    again: bool = False
    """Observe and plan once more after these: a claim is decided only after it was registered."""
    refusal: Refusal | None = None


def claims(prefix: str, keys: str) -> tuple[Claim, ...]:
    """Return what a policy claims: the leases of its family, and the room of the companions."""
    return (lease_claim(f"{prefix}:lease:{keys}"), area_claim(prefix))


def plan(want: Want, have: Observed) -> Plan:
    """Return the steps that bring `have` to `want`; none when nothing is to be done."""
    if not have.owners.registered(want.record):
        return Plan(actions=(RegisterClaim(want.record),), again=True)
    holder = have.owners.holder(want.record)
    if holder is None:
        return Plan()
    return Plan(
        refusal=Refusal(
            Reason.CONFLICT,
            f"Leases at {want.key}* belong to {holder.told(cluster=want.record.cluster)}, which is older; this policy"
            " takes over by itself when that one is deleted, or declare other keys",
        )
    )


def plan_removal(want: Want, have: Observed) -> Plan:
    """Return the steps after which the object leaves nothing behind."""
    field = want.record.field
    known = field in have.owners.records or field in have.owners.unreadable
    return Plan(actions=(RemoveClaim(field),) if known else ())


def conclude(want: Want, todo: Plan, failure: Refusal | None = None) -> Outcome:
    """Return what the status shall say, `failure` being the first action that failed."""
    status = {"keyPrefix": want.key}
    refusal = todo.refusal or failure
    if refusal is not None:
        return Outcome.refused(refusal, status=status)
    message = f"Leases that start with {want.keys!r} are kept at {want.key}*"
    return Outcome(ready=True, reason=Reason.READY, message=message, status=status)
