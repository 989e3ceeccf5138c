"""LeasePolicy: the rules for a family of leases."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from streamhold_operator.api import duration
from streamhold_operator.api.base import AllowedNamespaces, ConnectionRef, KubeModel, KubeObject, Status
from streamhold_operator.api.fields import LeaseKeys, LeaseTtl, LockDelay, MaxHold, RenewInterval, is_duration
from streamhold_operator.api.markers import Cel, immutable, rules

DEFAULT_TTL = "15s"

_TTL = f"(has(self.ttl) ? self.ttl : '{DEFAULT_TTL}')"
_TTL_READABLE = f"(!has(self.ttl) || ({is_duration('self.ttl')}))"


def _compared(field: str, condition: str) -> str:
    """A rule over `field` and the TTL; a text that is no duration is left to the rule of its own field."""
    readable = f"has(self.{field}) && {is_duration(f'self.{field}')} && {_TTL_READABLE}"
    return f"({readable}) ? ({condition}) : true"


class LeasePolicySpec(KubeModel):
    """Desired rules for a family of leases."""

    model_config = rules(
        Cel(
            "self.connectionRef == oldSelf.connectionRef",
            "connectionRef is immutable: delete the object and create it again to change it",
        ),
        immutable("keys"),
        Cel(
            _compared(
                "renewInterval",
                f"duration(self.renewInterval) + duration(self.renewInterval) <= duration({_TTL})",
            ),
            "renewInterval must be at most half of ttl (15s when left out): a failed renewal can then be tried again",
        ),
        Cel(
            _compared(
                "maxHold", f"duration(self.maxHold) == duration('0s') || duration(self.maxHold) >= duration({_TTL})"
            ),
            "maxHold must be 0s (unlimited) or at least ttl (15s when left out)",
        ),
    )

    connection_ref: ConnectionRef
    """The connection; immutable."""
    keys: LeaseKeys | None = None
    """The beginning of the lease keys, such as jobs/; the object's name and a slash when left out. Immutable."""
    ttl: LeaseTtl = DEFAULT_TTL
    """How long a lease lasts after its holder was last heard of; 15s when left out."""
    renew_interval: RenewInterval | None = None
    """How often holders renew; a third of ttl when left out, at most half of it."""
    lock_delay: LockDelay = "0s"
    """After a holder vanished without releasing, nobody gets the lease for this long; 0s when left out."""
    fencing: bool = True
    """Whether each holder gets a number larger than that of every holder before; true when left out."""
    max_hold: MaxHold = "0s"
    """How long one holder may keep a lease; 0s (the default) is unlimited."""
    allowed_namespaces: AllowedNamespaces = AllowedNamespaces()
    """From where clients may refer to this policy; its own namespace when left out."""
    suspend: bool = False
    """True: the operator leaves the policy as it is."""

    def effective_keys(self, name: str) -> str:
        """The beginning of the lease keys of the object with that name."""
        return self.keys or f"{name}/"

    @property
    def ttl_ms(self) -> int:
        """The time to live in milliseconds."""
        return duration.to_ms(self.ttl)

    @property
    def renew_interval_ms(self) -> int:
        """How often holders renew, in milliseconds."""
        return self.ttl_ms // 3 if self.renew_interval is None else duration.to_ms(self.renew_interval)

    @property
    def lock_delay_ms(self) -> int:
        """The lock delay in milliseconds; 0 is none."""
        return duration.to_ms(self.lock_delay)

    @property
    def max_hold_ms(self) -> int:
        """How long one holder may keep a lease, in milliseconds; 0 is unlimited."""
        return duration.to_ms(self.max_hold)


class LeasePolicyStatus(Status):
    """What the operator did."""

    key_prefix: Annotated[str, Field(max_length=1024)] | None = None
    """The beginning of the leases' keys in Redis."""


class LeasePolicy(KubeObject):
    """The rules for a family of leases: how long they last, how they are renewed, who may use them."""

    KIND: ClassVar[str] = "LeasePolicy"
    PLURAL: ClassVar[str] = "leasepolicies"

    spec: LeasePolicySpec
    status: LeasePolicyStatus = LeasePolicyStatus()
