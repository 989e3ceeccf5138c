"""StreamTopic: its claim on a stream's key and its declared consumer groups.

A stream that is there is adopted; groups that are missing are created; groups that are not declared are left alone; a
key of another type is never touched. A topic with an idle TTL whose stream expired is healthy and stays away until
somebody writes: reviving it would be a write that nobody asked for.

A declared group that existed and is gone is put back where this operator last saw it, so that nothing is handed out
a second time; where it never saw it, or the stream is a new one, it follows `startFrom` or begins at the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from streamhold.keys import RESERVED_TOPIC_PREFIXES, companion
from streamhold_operator.api.conditions import Reason
from streamhold_operator.api.v1alpha1.streamtopic import Group, StartFrom, StreamTopic, StreamTopicSpec, TopicDeletion
from streamhold_operator.domain.actions import (
    Action,
    CreateGroup,
    DeleteStream,
    DeleteStreamFamily,
    RegisterClaim,
    RemoveClaim,
)
from streamhold_operator.domain.claims import (
    Claim,
    OwnerRecord,
    Owners,
    area_claim,
    forbidden,
    key_claim,
    prefix_claim,
)
from streamhold_operator.domain.outcome import Outcome, Refusal

__all__ = ["Observed", "Plan", "StreamState", "Want", "claims", "conclude", "plan", "plan_removal", "unusable"]

NO_KEY = "none"
"""What TYPE says of a key that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """What is at a key."""

    type: str = NO_KEY
    groups: frozenset[str] = frozenset()
    last_id: str | None = None
    """The stream's last generated id, where it had to be asked for: a group known before is missing."""
    remembered: Mapping[str, str] = field(default_factory=dict)
    """Last delivered id of each group, as this process last saw it."""

    @property
    def missing(self) -> bool:
        """Whether there is no key."""
        return self.type == NO_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a StreamTopic asks for."""

    record: OwnerRecord
    """With the claims from `claims`."""
    prefix: str
    """The effective key prefix."""
    topic: str
    """The topic; for a family what its topics start with."""
    spec: StreamTopicSpec

    @classmethod
    def of(cls, topic: StreamTopic, *, prefix: str, cluster: str) -> Self:
        """Return what a StreamTopic asks for, under this key prefix and in the cluster with this id."""
        name = topic.spec.effective_topic(topic.metadata.name)
        made = claims(prefix, name, family=topic.spec.is_family)
        record = OwnerRecord.of(topic, cluster=cluster, claims=made)
        return cls(record=record, prefix=prefix, topic=name, spec=topic.spec)

    @property
    def family(self) -> bool:
        """Whether it stands for all topics that start like this."""
        return self.spec.is_family

    @property
    def key(self) -> str:
        """The stream's key; for a family what its streams' keys start with."""
        return f"{self.prefix}:{self.topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is there."""

    owners: Owners
    stream: StreamState = field(default_factory=StreamState)
    """Of no meaning for a family."""
    provisioned: frozenset[str] = frozenset()
    """The groups that the status says were provisioned before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do."""

    actions: tuple[Action, ...] = ()
    again: bool = False
    """Observe and plan once more after these: a claim is decided only after it was registered."""
    refusal: Refusal | None = None
    repairs: tuple[str, ...] = ()
    """What the actions put right that had been there before."""


def claims(prefix: str, topic: str, *, family: bool) -> tuple[Claim, ...]:
    """Return what a topic claims: its key or family, and the room of the companions."""
    key = f"{prefix}:{topic}"
    return (prefix_claim(key) if family else key_claim(key), area_claim(prefix))


def plan(want: Want, have: Observed) -> Plan:
    """Return the steps that bring `have` to `want`; none when nothing is to be done."""
    refusal = unusable(want)
    if refusal is not None:
        return Plan(refusal=refusal)
    if not have.owners.registered(want.record):
        return Plan(actions=(RegisterClaim(want.record),), again=True)
    holder = have.owners.holder(want.record)
    if holder is not None:
        return Plan(refusal=_conflict(want, holder))
    if want.family:
        return Plan()
    if not have.stream.missing and have.stream.type != "stream":
        return Plan(refusal=_wrong_type(want, have.stream.type))
    return _plan_groups(want, have)


def _plan_groups(want: Want, have: Observed) -> Plan:
    missing = [group for group in want.spec.groups if group.name not in have.stream.groups]
    expired = have.stream.missing and want.spec.idle_ttl_ms > 0
    if expired and all(group.name in have.provisioned for group in missing):
        return Plan()  # only a group that never was justifies to make the stream again
    actions = tuple(
        CreateGroup(key=want.key, group=group.name, start=_start(group, have), idle_ttl_ms=want.spec.idle_ttl_ms)
        for group in missing
    )
    lost = sorted(group.name for group in missing if group.name in have.provisioned)
    repairs = (f"Consumer groups of {want.key!r} were gone and are back: {', '.join(lost)}",) if lost else ()
    return Plan(actions=actions, repairs=repairs)


def _start(group: Group, have: Observed) -> str:
    """Return where a missing group starts (C-13, C-21)."""
    if group.name not in have.provisioned:
        return "0" if group.start_from is StartFrom.EARLIEST else "$"
    if have.stream.missing:
        return "0"
    seen, last = have.stream.remembered.get(group.name), have.stream.last_id
    if seen is None or last is None:
        return "0" if group.start_from is StartFrom.EARLIEST else "$"
    # A checkpoint beyond the stream's end is one of an earlier stream: everything in this one is new to the group.
    return seen if _id_order(seen) <= _id_order(last) else "0"


def _id_order(stream_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = stream_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def plan_removal(want: Want, have: Observed) -> Plan:
    """Return the steps after which the object leaves nothing behind that it shall not."""
    if want.record.field not in have.owners.records and want.record.field not in have.owners.unreadable:
        return Plan()
    actions: list[Action] = []
    if want.spec.deletion_policy is TopicDeletion.DELETE and _holds(want, have.owners):
        if want.family:
            actions.append(DeleteStreamFamily(prefix=want.prefix, key_prefix=want.key))
        elif have.stream.type == "stream" or have.stream.missing:
            kept = (companion(want.prefix, "dead", want.key), companion(want.prefix, "delayed", want.key))
            actions.append(DeleteStream(key=want.key, companions=kept))
    return Plan(actions=(*actions, RemoveClaim(want.record.field)))


def _holds(want: Want, owners: Owners) -> bool:
    return want.record.field in owners.winners and owners.registered(want.record)


def conclude(want: Want, have: Observed, todo: Plan, failure: Refusal | None = None) -> Outcome:
    """Return what the status shall say.

    Args:
        want: what was asked for.
        have: what was observed before the plan.
        todo: the plan that was carried out.
        failure: the first action that failed, if any.
    """
    refusal = todo.refusal or failure
    if refusal is not None:
        return Outcome.refused(refusal, status=_place(want))
    provisioned = sorted({group.name for group in want.spec.groups})
    if want.family:
        message = f"Topics that start with {want.topic!r} are kept at {want.key}*"
    elif have.stream.missing and not todo.actions and want.spec.idle_ttl_ms > 0:
        message = (
            f"There is no stream at {want.key}: nothing was published yet, or it expired after its idle TTL; the next"
            " event makes it"
        )
    else:
        told = f", groups: {', '.join(provisioned)}" if provisioned else ""
        message = f"The topic is kept at {want.key}{told}"
    status = {**_place(want), "groups": [] if want.family else provisioned}
    return Outcome(ready=True, reason=Reason.READY, message=message, status=status, repairs=todo.repairs)


def _place(want: Want) -> dict[str, object]:
    if want.family:
        return {"effectiveName": f"{want.topic}*", "keyPattern": f"{want.key}*"}
    return {"effectiveName": want.topic, "streamKey": want.key}


def unusable(want: Want) -> Refusal | None:
    """Return why a topic can never be: its name reaches keys of ours. What the schema can refuse, it has refused."""
    for reserved in RESERVED_TOPIC_PREFIXES:
        inside = want.topic.startswith(reserved) or (want.family and reserved.startswith(want.topic))
        if inside:
            return Refusal(
                Reason.CONFLICT,
                f"The topic {want.topic!r} reaches into the reserved names {reserved}*; delete this object and"
                " declare a topic of another name",
            )
    if forbidden(want.record.claims) is not None:
        return Refusal(
            Reason.CONFLICT,
            f"The key {want.key} covers the owner record that Streamhold keeps in each database; delete this object"
            " and declare a topic of another name",
        )
    return None


def _conflict(want: Want, holder: OwnerRecord) -> Refusal:
    what = f"Keys that start with {want.key}" if want.family else f"The key {want.key}"
    other = holder.told(cluster=want.record.cluster)
    return Refusal(
        Reason.CONFLICT,
        f"{what} belongs to {other}, which is older; this topic takes over by itself when that one is deleted,"
        " or declare a topic of another name",
    )


def _wrong_type(want: Want, found: str) -> Refusal:
    return Refusal(
        Reason.WRONG_TYPE,
        f"The key {want.key} holds a {found}, not a stream, and is left alone; move or delete it"
        f" (RENAME {want.key} …), or declare a topic of another name",
    )
