"""What a client may use: topics and lease policies with the key prefix that is in effect for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from streamhold.keys import lease_key, stream_key
from streamhold_operator.api.v1alpha1.coordinationclient import Access
from streamhold_operator.api.v1alpha1.leasepolicy import LeasePolicy, LeasePolicySpec
from streamhold_operator.api.v1alpha1.streamtopic import StreamTopic, StreamTopicSpec

__all__ = ["LeaseGrant", "TopicGrant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGrant:
    """One topic, or one family of topics, that a client may use."""

    namespace: str
    """Where the StreamTopic lives."""
    topic: str
    """The topic; for a family what its topics start with."""
    spec: StreamTopicSpec
    prefix: str
    """The effective key prefix."""
    access: frozenset[Access]

    @classmethod
    def of(cls, topic: StreamTopic, *, prefix: str, access: frozenset[Access]) -> Self:
        """Grant access to a StreamTopic whose keys have this prefix."""
        return cls(
            namespace=topic.metadata.namespace,
            topic=topic.spec.effective_topic(topic.metadata.name),
            spec=topic.spec,
            prefix=prefix,
            access=access,
        )

    @property
    def family(self) -> bool:
        """Whether it stands for all topics that start like this."""
        return self.spec.is_family

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
    spec: LeasePolicySpec
    prefix: str
    """The effective key prefix."""

    @classmethod
    def of(cls, policy: LeasePolicy, *, prefix: str) -> Self:
        """Grant the leases of a LeasePolicy whose keys have this prefix."""
        return cls(
            namespace=policy.metadata.namespace,
            keys=policy.spec.effective_keys(policy.metadata.name),
            spec=policy.spec,
            prefix=prefix,
        )

    @property
    def key(self) -> str:
        """What the leases' Redis keys start with."""
        return lease_key(self.prefix, self.keys)

    def name_for(self, namespace: str) -> str:
        """Return what code of a client in this namespace calls it."""
        return self.keys if namespace == self.namespace else f"{self.namespace}/{self.keys}"
