"""StreamTopic: one topic, or a family of topics that begin alike."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from streamhold_operator.api import duration
from streamhold_operator.api.base import AllowedNamespaces, ConnectionRef, KubeModel, KubeObject, Status
from streamhold_operator.api.fields import (
    GroupName,
    IdleTtl,
    InFlightTimeout,
    ReclaimInterval,
    ReclaimMinIdle,
    TopicName,
    TopicPrefix,
)
from streamhold_operator.api.markers import LIST_SET, Cel, immutable, list_map, rules


class StartFrom(StrEnum):
    """Where a new group begins."""

    EARLIEST = "Earliest"
    LATEST = "Latest"


class TopicDeletion(StrEnum):
    """What becomes of the stream when the object is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class Reclaim(KubeModel):
    """How entries of vanished consumers reach living ones."""

    interval: ReclaimInterval = "30s"
    """How often to look; 0s turns it off."""
    min_idle: ReclaimMinIdle = "60s"
    """How long an entry must have been left alone."""

    @property
    def interval_ms(self) -> int:
        """The interval in milliseconds; 0 is off."""
        return duration.to_ms(self.interval)

    @property
    def min_idle_ms(self) -> int:
        """The idle time in milliseconds."""
        return duration.to_ms(self.min_idle)


class DeadLetter(KubeModel):
    """Where events go that used up their attempts."""

    enabled: bool = False
    """True: they are kept in a stream of their own. False (the default): they are dropped with a warning."""
    max_length: Annotated[int, Field(ge=1, le=1_000_000_000)] = 10000
    """How many are kept."""


class Group(KubeModel):
    """A consumer group that the operator creates and keeps."""

    name: GroupName
    """Name of the group."""
    start_from: StartFrom = StartFrom.EARLIEST
    """Where a new group begins: Earliest (the default) or Latest. An existing group keeps its place."""


class StreamTopicSpec(KubeModel):
    """Desired state of one topic, or of a family: streams and their consumer groups."""

    model_config = rules(
        Cel(
            "self.connectionRef == oldSelf.connectionRef",
            "connectionRef is immutable: delete the object and create it again to change it",
        ),
        immutable("topic"),
        immutable("topicPrefix"),
        Cel(
            "!has(self.topic) || !has(self.topicPrefix)",
            "topic (one topic) and topicPrefix (a family of them) exclude each other: write one of them",
        ),
    )

    connection_ref: ConnectionRef
    """The connection; immutable."""
    topic: TopicName | None = None
    """Name of the topic; the name of the object when left out. Immutable."""
    topic_prefix: TopicPrefix | None = None
    """Instead of topic: every topic that begins like this, such as agent.run. for names made at run time. Immutable."""
    max_length: Annotated[int, Field(ge=0, le=1_000_000_000)] = 10000
    """About how many entries are kept; 0 keeps all. 10000 when left out."""
    idle_ttl: IdleTtl = "0s"
    """The stream expires when nobody wrote for this long; 0s (the default) is never."""
    reclaim: Reclaim = Reclaim()
    """How entries of vanished consumers reach living ones."""
    max_delivery_attempts: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    """How often an event is tried; 0 is without end. 5 when left out."""
    in_flight_timeout: InFlightTimeout = "0s"
    """How long a handler may take before its event is given back; 0s (the default) is without end."""
    dead_letter: DeadLetter = DeadLetter()
    """Where events go that used up their attempts."""
    groups: Annotated[tuple[Group, ...], list_map("name"), Field(max_length=64)] = ()
    """Consumer groups to create and keep."""
    allowed_namespaces: AllowedNamespaces = AllowedNamespaces()
    """From where clients may refer to this topic; its own namespace when left out."""
    deletion_policy: TopicDeletion = TopicDeletion.RETAIN
    """Retain (the stream stays when the object is deleted; the default) or Delete."""
    suspend: bool = False
    """True: the operator leaves the topic as it is."""

    @property
    def is_family(self) -> bool:
        """Whether the object stands for every topic that begins with `topicPrefix`."""
        return self.topic_prefix is not None

    def effective_topic(self, name: str) -> str:
        """The topic, or the beginning of the topics of a family, of the object with that name."""
        return self.topic_prefix or self.topic or name

    @property
    def idle_ttl_ms(self) -> int:
        """The idle time to live in milliseconds; 0 is never."""
        return duration.to_ms(self.idle_ttl)

    @property
    def in_flight_timeout_ms(self) -> int:
        """The handler's time in milliseconds; 0 is without end."""
        return duration.to_ms(self.in_flight_timeout)


class StreamTopicStatus(Status):
    """What the operator did."""

    effective_name: Annotated[str, Field(max_length=512)] | None = None
    """The topic; for a family its beginning with a star."""
    stream_key: Annotated[str, Field(max_length=1024)] | None = None
    """The key of the stream in Redis."""
    key_pattern: Annotated[str, Field(max_length=1024)] | None = None
    """For a family: the pattern of its keys."""
    groups: Annotated[tuple[Annotated[str, Field(max_length=128)], ...], LIST_SET, Field(max_length=64)] = ()
    """The groups provisioned, sorted."""


class StreamTopic(KubeObject):
    """One topic, or a family of topics that begin alike: streams, their consumer groups and their settings."""

    KIND: ClassVar[str] = "StreamTopic"
    PLURAL: ClassVar[str] = "streamtopics"

    spec: StreamTopicSpec
    status: StreamTopicStatus = StreamTopicStatus()
