"""What a client may use: topics and leases with their settings, as the ACL rule and the binding Secret need them.

The defaults of the settings live here and nowhere else in the operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from streamhold.keys import lease_key, stream_key

__all__ = ["Access", "DeadLetter", "Group", "LeaseGrant", "LeaseSettings", "StartFrom", "TopicGrant", "TopicSettings"]

Access: TypeAlias = Literal["Publish", "Consume", "Manage"]
StartFrom: TypeAlias = Literal["Earliest", "Latest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A declared consumer group."""

    name: str
    start_from: StartFrom = "Earliest"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Where deliveries go that failed too often."""

    enabled: bool = False
    max_length: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """How the library treats a topic."""

    max_length: int = 10_000
    idle_ttl_ms: int = 0
    reclaim_interval_ms: int = 30_000
    reclaim_min_idle_ms: int = 60_000
    max_delivery_attempts: int = 5
    in_flight_timeout_ms: int = 0
    dead_letter: DeadLetter = field(default_factory=DeadLetter)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How the library treats a family of leases."""

    ttl_ms: int = 15_000
    renew_interval_ms: int | None = None
    """None: a third of the TTL."""
    lock_delay_ms: int = 0
    fencing: bool = True
    max_hold_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGrant:
    """One topic, or one family of topics, that a client may use."""

    namespace: str
    """Where the StreamTopic lives."""
    topic: str
    """The topic; for a family the prefix of its topics."""
    prefix: str
    """The effective key prefix."""
    access: tuple[Access, ...]
    family: bool = False
    settings: TopicSettings = field(default_factory=TopicSettings)
    groups: tuple[Group, ...] = ()

    @property
    def key(self) -> str:
        """The stream's key; for a family what its streams' keys start with."""
        return f"{self.prefix}:{self.topic}" if self.family else stream_key(self.prefix, self.topic)

    def name_for(self, namespace: str) -> str:
        """Return what code of a client in this namespace calls it."""
        return self.topic if namespace == self.namespace else f"{self.namespace}/{self.topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    """One family of leases that a client may use."""

    namespace: str
    """Where the LeasePolicy lives."""
    keys: str
    """What the lease keys start with."""
    prefix: str
    """The effective key prefix."""
    settings: LeaseSettings = field(default_factory=LeaseSettings)

    @property
    def key(self) -> str:
        """What the leases' Redis keys start with."""
        return lease_key(self.prefix, self.keys)

    def name_for(self, namespace: str) -> str:
        """Return what code of a client in this namespace calls it."""
        return self.keys if namespace == self.namespace else f"{self.namespace}/{self.keys}"
